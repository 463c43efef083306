"""A store at rest that holds what a test wants, written without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amq.core.message import Message
from amq.journal.format import SegmentHeader, segment_name
from amq.journal.records import Destination, Previous, Record, encode_record
from tests.fuzz import corpus


def write_store(store: Path, names: Sequence[str], *records: Record) -> Path:
    """A store at rest, with a message in the destination of each full name."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(["queue://\0", *names]), start=1)}
    header = SegmentHeader(1, 1, bytes(range(16)), 0xC0FFEE)
    found: list[Record] = [Previous(0), *(Destination(number, name) for name, number in numbers.items())]
    found += [Message(name, name.encode(), persistent=True, seq=seq) for seq, name in enumerate(names, start=1)]
    payload = b"".join(encode_record(each, numbers) for each in (*found, *records))
    for name, data in (
        (f"journal/{segment_name(1, 1)}", header.encode() + corpus.batch(payload, 1, 0, header)),
        (f"epochs/{1:010d}.json", corpus.epoch_document(number=1, sealed={})),
    ):
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        path.write_bytes(data)
    store.chmod(0o750)
    return store
