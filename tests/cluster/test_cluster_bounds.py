"""Lists of a large cluster, 50 stores with 10,000 queues each: a page costs the same however many queues there are."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from amq.cluster.directory import Cluster
from amq.cluster.masters import Masters, StoreAnswer
from amq.cluster.whole import ROWS_MAX, Merged, WholeCluster
from amq.core.errors import CommandError
from amq.management.listing import LIMIT_MAX, Row
from amq.security.login import User

STORES, QUEUES = 50, 10_000
PAGE_BYTES_MAX = 8 << 20


class LargeMasters(Masters):
    """The masters of stores with many queues. `rows` counts those that they gave, `asked` their answers."""

    rows = 0
    asked: Counter[str]

    def ask_all(
        self,
        path: str,
        user: User | None = None,  # noqa: ARG002
        timeout_s: float = 0.0,  # noqa: ARG002
        stores: Sequence[str] | None = None,
    ) -> list[StoreAnswer]:
        query = dict(parse_qsl(urlsplit(path).query))
        offset, limit = int(query["offset"]), int(query["limit"])
        return [self._page(store, offset, limit) for store in stores or self.table().stores]

    def _page(self, store: str, offset: int, limit: int) -> StoreAnswer:
        assert limit <= LIMIT_MAX
        first = int(store[1:])
        items: list[Row] = [
            {"name": f"q{number * STORES + first:06}", "messages": number, "text": "x" * 200}
            for number in range(offset, min(QUEUES, offset + limit))
        ]
        self.rows += len(items)
        self.asked[store] += 1
        return StoreAnswer(store, "a", {"items": items, "total": QUEUES, "offset": offset, "limit": limit})


@pytest.fixture
def masters(tmp_path: Path) -> LargeMasters:
    names = [f"s{number}" for number in range(STORES)]
    made = LargeMasters(Cluster.create(str(tmp_path / "c"), dict.fromkeys(names, "")))
    made.asked = Counter()
    return made


def test_a_page_costs_a_few_rows_of_each_store(masters: LargeMasters) -> None:
    whole = WholeCluster(masters)
    whole.ask("GET", "/queues?limit=1")
    masters.rows = 0
    masters.asked.clear()
    tracemalloc.start()
    page = whole.ask("GET", "/queues?limit=100")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row["name"] for row in page["items"]] == [f"q{number:06}" for number in range(100)]
    assert page["total"] == STORES * QUEUES
    assert masters.rows == 20 * STORES
    assert set(masters.asked.values()) == {1}
    assert peak < PAGE_BYTES_MAX


def test_the_last_page_costs_as_much_as_all_before_it_and_there_is_a_last_one(masters: LargeMasters) -> None:
    whole = WholeCluster(masters)
    page = whole.ask("GET", f"/queues?offset={ROWS_MAX - 100}&limit=100")
    assert [row["name"] for row in page["items"]] == [f"q{number:06}" for number in range(ROWS_MAX - 100, ROWS_MAX)]
    assert masters.rows <= 3 * ROWS_MAX
    with pytest.raises(CommandError, match="ends at row"):
        whole.ask("GET", f"/queues?offset={ROWS_MAX}&limit=1")


def test_a_command_reads_on_without_keeping_what_it_has_shown(masters: LargeMasters) -> None:
    rows = iter(Merged(masters, "/queues", {}))
    tracemalloc.start()
    count = sum(1 for _ in islice(rows, 10_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 10_000
    assert peak < PAGE_BYTES_MAX
