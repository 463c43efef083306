"""Which tests run in one process."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
SPARK: Final = "tests/spark/"


def scope_of(nodeid: str) -> str:
    """What runs in one process: the tests of a file; and all that use the session of Spark, whose JVM takes seconds to
    start and runs faster the longer it has run. They begin first: nothing takes longer."""
    path = nodeid.partition("::")[0]
    return SPARK if path.startswith(SPARK) and _has_session(path) else path


@functools.cache
def _has_session(path: str) -> bool:
    return re.search(r"\bspark: ", (ROOT / path).read_text()) is not None
