"""The overview of the group: brokers, alarms, and the takeovers on their time line."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from amq.console.link import Seen
from amq.console.metrics import broker_text
from amq.console.overview import EPOCHS_SHOWN, NAMES_MAX, WIDTH, alarms, drawing, takeovers
from amq.store.epoch import Epoch
from amq.store.host import Owner
from amq.store.status import StoreStatus
from tests.console.consoles import by_password, client_of, with_console
from tests.console.test_console_pages import log_in
from tests.management.managed import Managed

HOSTILE = "<script>alert(1)</script>"
MASTER = {
    "store_full": False,
    "store_at_limit": False,
    "memory_used_bytes": 1,
    "memory_limit_bytes": 2,
    "dead_letters": 0,
    "queues_without_consumers": 0,
}


def epoch(number: int, name: str, started_ms: int, reason: str = "first start of this store") -> Epoch:
    owner = Owner(f"uuid-{number}", name, f"host-{name}", "boot", "", 1, 1, (), 2.0)
    return Epoch(number, owner, {}, started_ms, reason)


async def test_a_takeover_is_in_the_overview_of_both(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await log_in(client)
        page = (await client.get("/")).text
        assert re.search(r"lease: \d", page)
        assert "first start of this store" in page
        assert len(re.findall("<rect", page)) == 1
        slave = Managed(tmp_path, by_password, name="b", management_socket=str(tmp_path / "b.sock"))
        await slave.start(as_slave=True)
        async with client_of(made.config.store, "b") as other:
            await log_in(other)
            assert "slave" in (await other.get("/")).text
            await made.stop()
            await slave.service.wait_for(type(slave.service.role).MASTER)
            while len(re.findall("<rect", (await other.get("/?part=takeovers")).text)) != 2:
                await asyncio.sleep(0.05)  # the store is read once a second
            page = (await other.get("/?part=takeovers")).text
            assert re.search(r'scope="row" class="number"[^>]*>2</th><td[^>]*>b</td>', page)
            assert "role: master" in (await other.get("/history")).text
        await slave.stop()


def test_the_time_line_shows_the_last_ones_within_its_width() -> None:
    epochs = [epoch(number, f"b{number % 11}", number * number * 1000) for number in range(1, 60)]
    found = drawing(epochs, 60 * 60 * 1000)
    assert found is not None
    assert len(found["lines"]) <= NAMES_MAX
    assert len(found["bars"]) <= EPOCHS_SHOWN
    assert all(bar["x"] >= 0 and bar["x"] + bar["width"] <= WIDTH for bar in found["bars"])
    rows = takeovers(epochs, 60 * 60 * 1000)
    assert [row["epoch"] for row in rows] == [str(number) for number in range(59, 59 - EPOCHS_SHOWN, -1)]
    assert rows[0]["lasted"] == "1 min 59 s"


def test_clocks_that_differ_and_one_moment_break_nothing() -> None:
    """Each epoch has the wall clock of its own broker."""
    for times in ([1000], [1000, 1000, 1000], [9000, 5000, 1000]):
        epochs = [epoch(number, "a", ms) for number, ms in enumerate(times, 1)]
        found = drawing(epochs, 1000)
        assert found is not None
        assert all(bar["width"] > 0 and bar["x"] <= WIDTH for bar in found["bars"])
        assert all(row["lasted"] for row in takeovers(epochs, 1000))
    assert drawing([], 1000) is None


def test_alarms_name_cause_and_cure() -> None:
    seen = Seen(StoreStatus("free", None, False, None, []), None, 1 << 20)
    assert alarms(seen, None) == ["No broker of the group serves clients now."]
    told = {
        "store_full": "The disk of the store is full (1.0 MiB free)",
        "store_at_limit": "storeLimit is reached",
    }
    assert len(alarms(seen, MASTER)) == 1
    for field, text in told.items():
        assert text in " ".join(alarms(seen, {**MASTER, field: True})), field
    assert "memoryLimit is reached" in " ".join(alarms(seen, {**MASTER, "memory_used_bytes": 2}))
    of_database = Seen(StoreStatus("free", None, False, None, []), None, None)
    assert "The disk of the store is full: new" in " ".join(alarms(of_database, {**MASTER, "store_full": True}))
    assert "amq_disk_free_bytes" in broker_text(seen, None, None, 0)
    assert "amq_disk_free_bytes" not in broker_text(of_database, None, None, 0)
