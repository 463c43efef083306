"""Journals that are well formed, with right checksums, whose records lie: about messages that nobody stored, seqs that
are given twice or cannot go on, queues of other kinds. A broker that reads one goes on, or refuses it as documented."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from amq.broker.state.snapshot import dump, load
from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import StoreError
from amq.core.message import Message
from amq.core.xid import Xid
from amq.journal.checkpoint import HEAD, encode_head
from amq.journal.follower import Position, replay
from amq.journal.format import SegmentHeader, segment_name
from amq.journal.records import (
    BatchContent,
    Consumed,
    Destination,
    Duplicates,
    Group,
    Marker,
    Moved,
    ObeyedTable,
    Outcomes,
    Parcel,
    Prepared,
    Previous,
    Record,
    Redelivered,
    Resolved,
    Trimmed,
    encode_record,
)
from amq.journal.records.multicast import Multicast
from amq.journal.records.subscription import Subscribed
from amq.journal.recovery import seal
from amq.store.files.log import FileLog
from tests.fuzz import corpus
from tests.fuzz.targets import STORE, store
from tests.fuzz.test_fuzz_structured import refusal
from tests.sampling import examples

NAMES = [
    "queue://a",
    "queue://b",
    "topic://t",
    "subscription://c:s:1",
    "sent://queue://a",
    "held://queue://a",
    "schedule://queue://a",
    "retained://topic://t",
    "",
    "nonsense",
    "queue://a,queue://b",
    "queue://>",
    "sent://",
    "sent://sent://queue://a",
    "\0\x1b[2J",
]
IDS = {name: number for number, name in enumerate(NAMES, 1)}
BROAD = [0, 1, 2, 3, 4, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 44, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
names = st.sampled_from(NAMES)
numbers = st.sampled_from(BROAD)
few = st.lists(numbers, max_size=4)
ids = st.sampled_from(["", "x", "y", "commit"])
xids = ids | st.just(Xid(1, b"g", b"b"))
counts = st.integers(0, (1 << 32) - 1) | st.sampled_from([0, 1])
by_queue = st.dictionaries(names, few, max_size=2)
messages = st.builds(
    Message,
    names,
    st.binary(max_size=3),
    st.just(None),
    st.just(""),
    st.integers(0, 9),
    st.just(True),
    numbers,
    numbers,
    ids,
    st.just(False),
    numbers,
)
definitions = st.fixed_dictionaries(
    {
        "client_id": ids,
        "name": ids,
        "topics": st.lists(names, min_size=1, max_size=2),
        "selector": st.sampled_from(["", "a = 1", "(" * 200, "a ="]),
        "message_id_prefix": st.none() | ids,
        "no_local": st.booleans(),
    },
    optional={
        "expires_s": numbers,
        "user": ids,
        "exact": st.lists(names, max_size=2),
        "options": st.dictionaries(names, st.dictionaries(ids, numbers, max_size=1), max_size=1),
    },
)


@st.composite
def multicasts(draw: st.DrawFn) -> Multicast:
    queues = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    first = draw(numbers)
    message = draw(messages)
    seqs = [min(first + each, (1 << 64) - 1) for each in draw(st.sampled_from([(0, 1, 2), (0, 0, 0), (0, 9, 4)]))]
    message.seq = seqs[0]
    return Multicast(message, queues, [seq if seq >= first else first for seq in seqs[: len(queues)]])


simple = (
    messages
    | st.builds(Consumed, names, st.integers(0, 4), few)
    | st.builds(Redelivered, names, st.lists(st.tuples(numbers, counts, counts), max_size=3))
    | st.builds(Moved, names, names, few, st.lists(st.tuples(ids, numbers), max_size=2))
    | st.builds(
        Prepared,
        xids,
        numbers,
        numbers,
        numbers,
        ids,
        numbers,
        by_queue,
        by_queue,
        st.lists(st.tuples(names, ids, numbers), max_size=2),
    )
    | st.builds(Resolved, xids, st.booleans(), numbers)
    | st.builds(Marker, ids, numbers, st.none() | st.builds(BatchContent, numbers, numbers))
    | st.builds(Duplicates, names, st.lists(st.tuples(ids, numbers), max_size=2))
    | st.builds(Outcomes, st.lists(st.tuples(ids, numbers), max_size=2))
    | st.builds(Trimmed, numbers, numbers, st.dictionaries(st.tuples(numbers, numbers), numbers, max_size=2))
    | st.builds(Subscribed, names, st.just({}) | definitions)
    | st.builds(ObeyedTable, ids, ids, numbers, st.just({}))
    | st.builds(Parcel, ids, numbers, ids, by_queue, numbers)
)
records = simple | multicasts() | st.builds(Group, st.lists(simple, max_size=3), ids, numbers)


@st.composite
def segments(draw: st.DrawFn, epoch: int, number: int) -> bytes:
    header = SegmentHeader(epoch, number, bytes(16), 0xC0FFEE)
    first: list[Record] = [Previous(0), *(Destination(number, name) for name, number in IDS.items())]
    payload = b"".join(encode_record(each, IDS) for each in [*first, *draw(st.lists(records, min_size=1, max_size=12))])
    second = b"".join(encode_record(each, IDS) for each in draw(st.lists(records, min_size=1, max_size=12)))
    batches = (corpus.batch(data, at, 1, header) for at, data in enumerate((payload, second), 1))
    return header.encode() + b"".join(batches) + bytes(64)


@settings(max_examples=examples(100))
@given(st.data())
def test_records_that_lie(data: st.DataObject) -> None:
    files = {segment_name(epoch, 1): data.draw(segments(epoch, 1)) for epoch in range(1, data.draw(st.integers(2, 3)))}
    if refusal(files, 2, {}) == " ".join(files):  # it is served: what is known of it goes through a checkpoint, too
        checkpointed(files)


def checkpointed(files: dict[str, bytes]) -> None:
    """A checkpoint of what a broker has read. The one that loads it may refuse it, as documented."""
    vfs = store({f"journal/{name}": data for name, data in files.items()} | {"journal/reserve": b""})
    sealed, state = seal(FileLog(vfs, STORE), 2, {}), State(BrokerConfig(store=STORE))
    replay(FileLog(vfs, STORE), sealed, state.apply, lambda _done, _total: None)
    segments = list(state.segments.values())
    position = Position(1, 1, 500, 200, 2, 0xC0FFEE, {})
    blocks = [(HEAD, encode_head(position, Trimmed(), bytes(16))), *dump(state, lambda: segments)]
    with suppress(StoreError):
        load("x.ckpt", iter(blocks), State(BrokerConfig(store=STORE)))
