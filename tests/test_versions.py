"""docs/versions.md says which versions of formats this program writes."""

from __future__ import annotations

import re
from pathlib import Path

from amq.journal import checkpoint, format, interchange
from amq.lock import document

PAGE = Path(__file__).parents[1] / "docs" / "versions.md"


def test_the_page_names_the_versions_of_today() -> None:
    told = dict(re.findall(r"^\| ([a-z][^|]*) \| (\d+) \|", PAGE.read_text(), re.MULTILINE))
    assert told == {
        "segments of the journal": str(format.VERSION), "checkpoints": str(checkpoint.FORMAT),
        "lock, epochs, claims, heartbeats": str(document.FORMAT), "exported journals": str(interchange.VERSION),
    }  # fmt: skip
