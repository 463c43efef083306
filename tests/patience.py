"""How long tests wait for what must come. Only a hang takes so long, also on a slow machine that has other work."""

from __future__ import annotations

from typing import Final

DEADLINE_S: Final = 180.0
