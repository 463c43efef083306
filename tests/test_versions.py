"""docs/versions.md says which versions of formats this program writes."""

from __future__ import annotations

import re
from pathlib import Path

from amq.journal import checkpoint, format, interchange
from amq.store import epoch, presence
from amq.store.document import newest_format

CLUSTER_KINDS = ("cluster", "cluster-table", "node", "node-order")
PAGE = Path(__file__).parents[1] / "docs" / "versions.md"


def test_the_page_names_the_versions_of_today() -> None:
    told = re.findall(r"^\| ([a-z][^|]*) \| (\d+) \| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE)
    assert {what: int(version) for what, version, _ in told} == {
        "segments of the journal": format.VERSION,
        "checkpoints": checkpoint.FORMAT,
        "epochs": newest_format(epoch.KIND),
        "claims, heartbeats, presence of brokers": newest_format(presence.KIND),
        "tables, seats and orders of a cluster": max(map(newest_format, CLUSTER_KINDS)),
        "exported journals": interchange.VERSION,
    }
    for what, version, read in told:
        assert read == ", ".join(map(str, range(1, int(version) + 1))), f"every version of {what} is read"


def test_what_brokers_of_two_versions_read_from_each_other_keeps_its_format() -> None:
    """0.1 knows format 1 of them, and judges by them who has claimed the store and who runs."""
    assert [newest_format(kind) for kind in ("claim", "heartbeat", "release", "broker")] == [1, 1, 1, 1]
