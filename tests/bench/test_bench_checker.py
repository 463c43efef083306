"""Each promise is broken once by hand: the checker must see that one, and none where all were kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import history
from bench.checker import check
from bench.history import Log, Observation

QUEUE = "/queue/q"


def log(worker: str, text: str, queue: str = QUEUE) -> Log:
    """`time kind connection message detail`, one event a line; time in µs."""
    events = []
    for line in text.strip().splitlines():
        stamp, kind, connection, *rest = line.split()
        message, detail = [*rest, "", ""][:2]
        if kind == "open":
            message, detail = "", message
        events.append(Observation(int(stamp), kind, int(connection), message, detail))
    return Log(worker, worker.rstrip("0123456789"), queue, events)


PRODUCER = """
    10 open 1 A/1
    11 send 1 p-1
    11 send 1 p-2
    15 sent 1 p-1
    30 open 2 B/2
    31 send 2 p-2
    35 sent 2 p-2
"""
CONSUMER = """
    10 open 1 A/1
    16 recv 1 p-1 id-1
    17 ack 1 p-1
    30 open 2 B/2
    32 recv 2 p-1 id-1
    33 ack 2 p-1
    36 recv 2 p-2 id-2
    37 ack 2 p-2
    38 acked 2 p-1
    39 acked 2 p-2
"""


def rules(*logs: Log) -> set[str]:
    return {violation.rule for violation in check(logs)}


def test_kept_promises_over_a_takeover() -> None:
    assert check([log("producer", PRODUCER), log("consumer", CONSUMER)]) == []


@pytest.mark.parametrize(
    ("rule", "consumer"),
    [
        ("lost", "10 open 1 A/1\n16 recv 1 p-1 id-1"),
        ("invented", CONSUMER + "40 recv 2 p-3 id-3"),
        ("invented", CONSUMER + "40 bad 2 p-2 shorter"),
        ("undone", CONSUMER + "50 open 3 B/2\n51 recv 3 p-1 id-1"),
        ("doubled", CONSUMER + "51 recv 2 p-1 id-9"),
        ("doubled", "10 open 1 A/1\n16 recv 1 p-1 id-1\n17 recv 1 p-1 id-1\n18 recv 1 p-2 id-2"),
        ("reordered", "30 open 2 B/2\n36 recv 2 p-2 id-2\n37 recv 2 p-1 id-1"),
    ],
)
def test_broken_promise(rule: str, consumer: str) -> None:
    assert rules(log("producer", PRODUCER), log("consumer", consumer)) == {rule}


def test_undone_at_another_consumer_counts_only_on_a_later_connection() -> None:
    producer = log("producer", "10 open 1 A/1\n11 send 1 p-1\n12 sent 1 p-1")
    acker = log("consumer1", "10 open 1 A/1\n20 recv 1 p-1 id-1\n21 ack 1 p-1\n22 acked 1 p-1")
    reads_late = log("consumer2", "10 open 1 A/1\n30 recv 1 p-1 id-1")
    comes_late = log("consumer2", "25 open 1 A/1\n30 recv 1 p-1 id-1")
    assert rules(producer, acker, reads_late) == set()
    assert rules(producer, acker, comes_late) == {"undone"}


def test_work_of_an_older_epoch() -> None:
    """A was asked at 40, when B had confirmed at 35 under a newer epoch."""
    old = log("producer1", "10 open 1 A/1\n11 send 1 a-1\n12 sent 1 a-1\n40 send 1 a-2\n41 sent 1 a-2")
    new = log("producer2", "20 open 1 B/2\n21 send 1 b-1\n35 sent 1 b-1")
    all_seen = log("consumer", "10 open 1 B/2\n50 recv 1 a-1 1\n51 recv 1 a-2 2\n52 recv 1 b-1 3")
    assert rules(old, new, all_seen) == {"two masters"}
    asked_before = log("producer1", "10 open 1 A/1\n11 send 1 a-1\n12 sent 1 a-1\n34 send 1 a-2\n41 sent 1 a-2")
    assert rules(asked_before, new, all_seen) == set()


def test_history_on_disk(tmp_path: Path) -> None:
    writer = history.HistoryWriter(tmp_path, "consumer7", "consumer", QUEUE)
    writer.add("open", 1, detail="61613/3")
    writer.add("recv", 1, "p-1", "id-1")
    writer.close()
    (read,) = history.read(tmp_path)
    assert (read.worker, read.role, read.queue) == ("consumer7", "consumer", QUEUE)
    assert [event[1:] for event in read.events] == [("open", 1, "", "61613/3"), ("recv", 1, "p-1", "id-1")]
