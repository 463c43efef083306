"""Stores that were forged: everything is well formed and has right checksums, and no broker has written it. A broker
ends with an error of the store that says so; it does not serve, loop, or end by an internal error."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amq.broker.core import SEQ_EPOCH_SHIFT
from amq.core.message import Message
from amq.journal.format import SegmentHeader, segment_name
from amq.journal.records import Destination, Previous, Record, encode_record
from amq.journal.records.subscription import Subscribed
from amq.store.epoch import EPOCH_MAX
from tests.brokers import Brokers
from tests.cli.amq_process import amq
from tests.fuzz import corpus
from tests.patience import DEADLINE_S
from tests.sampling import sampled

DEFINITION: dict[str, Any] = {
    "client_id": "c",
    "name": "s",
    "topics": ["topic://a"],
    "selector": "",
    "message_id_prefix": "x",
    "no_local": False,
}
QUEUE = "subscription://c:s:1"


def forge(store: Path, records: list[Record], epoch: int = 1) -> Path:
    """A store whose newest epoch has that number, with one segment of these records."""
    header = SegmentHeader(epoch, 1, bytes(range(16)), 0xC0FFEE)
    first: list[Record] = [Previous(0), Destination(1, "queue://a")]
    payload = b"".join(encode_record(each, {"queue://a": 1}) for each in [*first, *records])
    for name, data in (
        (f"journal/{segment_name(epoch, 1)}", header.encode() + corpus.batch(payload, 1, 0, header)),
        (f"epochs/{epoch:010d}.json", corpus.epoch_document(number=epoch, sealed={})),
    ):
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        path.write_bytes(data)
    store.chmod(0o750)
    return store


def message(seq: int) -> Message:
    return Message("queue://a", b"forged", persistent=True, seq=seq)


FORGED: dict[str, tuple[list[Record], int, str]] = {
    "the last epoch that a number of 64 bits has room for": ([], EPOCH_MAX + 1, "epochs"),
    "an epoch behind which none can be written": ([], 9_999_999_999, "epochs"),
    "the last seq of all": ([message((1 << 64) - 1)], 1, "epoch"),
    "a seq that the next master gives": ([message((2 << SEQ_EPOCH_SHIFT) + 1)], 1, "epoch 2"),
    "a subscription with a queue that no broker makes": ([Subscribed("queue://a", DEFINITION)], 1, "subscription"),
    "a subscription as old as no number": ([Subscribed(f"{QUEUE}{'9' * 5000}", DEFINITION)], 1, "subscription"),
    "a subscription with an impossible selector": (
        [Subscribed(QUEUE, {**DEFINITION, "selector": "("})],
        1,
        "impossible selector",
    ),
}


@pytest.mark.parametrize("name", sampled(FORGED, every=5))
def test_a_broker_refuses_what_no_broker_wrote(tmp_path: Path, name: str) -> None:
    records, epoch, says = FORGED[name]
    forge(tmp_path / "store", records, epoch)
    with Brokers(tmp_path) as brokers:
        broker = brokers.add("a").start()
        assert broker.wait_exit() == 4, broker.log_text()
        (stopped,) = broker.said("stopped")
    assert (stopped["code"], says in stopped["reason"]) == ("STORE_CORRUPT", True), stopped


def test_the_last_epoch_leaves_room_for_seqs() -> None:
    """The next master counts as one more."""
    assert (EPOCH_MAX + 2) << SEQ_EPOCH_SHIFT <= 1 << 64
    assert (EPOCH_MAX + 3) << SEQ_EPOCH_SHIFT > 1 << 64


def test_a_repair_sets_an_impossible_epoch_aside(tmp_path: Path) -> None:
    store = forge(tmp_path / "store", [message((1 << SEQ_EPOCH_SHIFT) + 1)])
    (store / "epochs" / "9999999999.json").write_bytes(corpus.epoch_document(number=9_999_999_999, sealed={}))
    assert amq("journal", "repair", "--store", store, "--yes").returncode == 0
    with Brokers(tmp_path) as brokers:
        client = brokers.master().connect()
        with closing(client.socket):
            client.send("SUBSCRIBE", {"destination": "/queue/a", "id": 1})
            assert client.next_frame(DEADLINE_S).body == b"forged"
