"""Valid inputs of every target, small ones: what mutation starts from."""

from __future__ import annotations

import struct

from amq.broker.state.snapshot import dump
from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.message import Copy, Message
from amq.core.values import Int32
from amq.journal.checkpoint import HEAD, CheckpointFile, encode_head
from amq.journal.follower import Position
from amq.journal.format import HAS_TRIM_MARK, SegmentHeader, encode_batch, segment_name
from amq.journal.live import Segment
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
from amq.journal.records.message import encode_message
from amq.journal.records.multicast import Multicast
from amq.journal.records.subscription import Subscribed
from amq.protocols.openwire import table
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, frame, structure
from amq.protocols.openwire.table import encode as encode_structure
from amq.protocols.openwire.wire import optional_bytes
from amq.protocols.stomp.runs import pack
from amq.security.users import PasswordHash
from amq.store.document import encode
from amq.store.election import RECORD_BYTES
from amq.store.files.election import RELEASE_OFFSET
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner

HEADER = SegmentHeader(1, 1, bytes(16), 0xC0FFEE)
IDS = {"queue://a": 1, "queue://b": 2}
DESTINATIONS: list[Record] = [Destination(1, "queue://a"), Destination(2, "queue://b")]
OWNER = Owner("uuid-1", "master", "alpha", "boot-1", "pid:[1]", 100, 5000, ("stomp://alpha:61613",), 2.0)


def message(seq: int, body: bytes = b"body", destination: str = "queue://a") -> Message:
    return Message(destination, body, {"k": "v"}, "text/plain", 4, True, 1, 2, f"id-{seq}", True, seq)


DURABLE = Subscribed(
    "subscription://c:s:7",
    {
        "client_id": "c",
        "name": "s",
        "topics": ["topic://t"],
        "selector": "a = 'b'",
        "message_id_prefix": "ID:",
        "no_local": False,
    },
)
RECORDS: list[Record] = [
    message(1),
    message(2, b"", "queue://b"),
    Consumed("queue://a", 0, [1]),
    Redelivered("queue://b", [(2, 1, 1)]),
    Group([message(3), Consumed("queue://b", 2, [2])], "commit"),
    Duplicates("queue://a", [("x", 1), ("y", 2)]),
    Outcomes([("commit", 3)]),
    Trimmed(1, 0),
    Moved("queue://a", "queue://b", [1, 2], [("x", 1)]),
    Multicast(message(8, destination="topic://t"), list(IDS), [8, 9]),
    Prepared("x", 3, 1, 2, "job", 7, {"queue://a": [1, 2]}, {"queue://b": [3]}, [("queue://a", "m", 1)]),
    Resolved("x", True, 4),
    Marker("job", 7),
    Marker("job", 8, BatchContent(3, 9)),
    ObeyedTable("c", "s1", 7, {"since": 7}),
    Parcel("outbox://queue.b", 9, "s2", {"outbox://queue.b": [7, 8]}),
    DURABLE,
    Subscribed(DURABLE.queue, {}),
]


def payload(records: list[Record]) -> bytes:
    return b"".join(encode_record(record, IDS) for record in records)


def batch(data: bytes, number: int, flags: int = 0, header: SegmentHeader = HEADER) -> bytes:
    return encode_batch(data, header.salt, header.epoch, number, 1, 0, flags)


def segments() -> list[bytes]:
    first = batch(payload([Previous(0), *DESTINATIONS, *RECORDS[:3]]), 1)
    second = batch(payload(RECORDS[3:]), 2, HAS_TRIM_MARK)
    return [
        HEADER.encode() + bytes(100),
        HEADER.encode() + first + bytes(512),
        HEADER.encode() + first + second,
        HEADER.encode() + first + second[:-9] + bytes(9),
    ]


def payloads() -> list[bytes]:
    return [payload(RECORDS), *(payload([record]) for record in RECORDS)]


def _dumped() -> list[tuple[int, bytes]]:
    """The blocks of a small checkpoint, of every kind."""
    state = State(BrokerConfig(store="/store"))
    segment = Segment(segment_name(1, 1), 1, 1, 900)
    stored: list[Record] = [message(seq) for seq in range(4, 8)]
    copies = [Copy.of(message(8), name, seq) for seq, name in enumerate(IDS, 8)]
    stored.append(Multicast(message(8), list(IDS), copies=copies))
    stored += [Redelivered("queue://a", [(4, 1, 0)]), Duplicates("queue://b", [("x", 1)]), Outcomes([("commit", 3)])]
    stored += [Prepared("x", 3, 1, 2, "job", 7, {"queue://a": [1, 2]}), Marker("job", 6)]
    stored.append(ObeyedTable("c", "s1", 6, {"since": 6}))
    stored.append(Parcel("00ff/outbox://queue.a", 5, count=2))
    stored.append(DURABLE)
    for i, record in enumerate(stored):
        if isinstance(record, Message):
            record.offset, record.size = 100 + 50 * i, 50
        elif isinstance(record, Multicast):
            record.place(100 + 50 * i, 50)
        state.apply(record, segment)
    head = encode_head(Position(1, 1, 500, 200, 2, 0xC0FFEE, {1: "queue://a"}), Trimmed(), bytes(16))
    return [(HEAD, head), *dump(state, lambda: [segment])]


def checkpoints() -> list[bytes]:
    file = CheckpointFile(FileLog(SystemVfs(), "/store").checkpoints, Position(1, 1, 500, 200, 2, 0xC0FFEE, {}))
    return [b"", b"".join(file.frame(kind, payload) for kind, payload in _dumped())]


def checkpoint_blocks() -> list[bytes]:
    blocks = [len(payload).to_bytes(4, "little") + bytes((kind,)) + payload for kind, payload in _dumped()]
    return [b"", b"".join(blocks), blocks[0], blocks[0] + blocks[-1]]


def epoch_document(**changes: object) -> bytes:
    body = {
        "number": 1,
        "owner": OWNER.to_json(),
        "sealed": {"00000001-00000001.seg": 100},
        "started_wall_ms": 5,
        "reason": "first start",
        "attempt": "a-1",
    }
    return encode("epoch", {**body, **changes})


def epochs() -> list[bytes]:
    return [epoch_document(), epoch_document(sealed={}), epoch_document(number=2)]


def claims() -> list[bytes]:
    return [b"", encode("claim", {"epoch": 1, "attempt": "uuid-1-1", "name": "x"}, RECORD_BYTES)]


def locks() -> list[bytes]:
    beat = encode("heartbeat", {"owner": OWNER.to_json(), "epoch": 1, "count": 1, "wall_ms": 5}, RECORD_BYTES)
    mark = encode("release", {"epoch": 1, "uuid": OWNER.uuid, "wall_ms": 5}, RECORD_BYTES)
    return [b"", beat, beat.ljust(RELEASE_OFFSET, b"\0") + mark]


def presences() -> list[bytes]:
    return [b"", encode("broker", {"role": "slave", "owner": OWNER.to_json()}, 16 << 10)]


def users() -> list[bytes]:
    line = b"alice:" + str(PasswordHash(1 << 14, 8, 1, bytes(16), bytes(32))).encode()
    return [b"", b"# nobody\n", line, line + b"\r\n\n" + line.replace(b"alice", "zoë".encode()) + b"\n"]


def broker_urls() -> list[bytes]:
    return [
        b"stomp://localhost:61613",
        b"failover:(stomp://a:1,stomp://[::1]:2)?randomize=false&maxReconnectAttempts=3",
        b"failover://stomp://u:secret@a",
        b"stomp://u%40:secret@h?connectionTimeout=5",
        b"failover:(stomp://a,stomp://b)?priorityBackup=true&priorityURIs=stomp://b&nested.connectionTimeout=9",
    ]


def transport_urls() -> list[bytes]:
    return [b"stomp://0.0.0.0:61613", b"stomp://[::]:0", b"stomp://host.example"]


def first_bytes() -> list[bytes]:
    return [
        b"CONNECT\naccept-version:1.2\nhost:h\n\n\0SEND\ndestination:/queue/a\ncontent-length:3\n\nabc\0\n",
        b"AMQP\0\1\0\0",
        b"\0\0\1\x2a\x01ActiveMQ",
        b"\x10\x0c\0\4MQTT\4\2\0\x3c",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
    ]


CONNECT_WITH_RUNS = b"CONNECT\naccept-version:1.2\nhost:h\namq-runs:1\n\n\0"


def stomp_runs() -> list[bytes]:
    """Frames of many messages: with a list of names, with several, without headers."""
    found = []
    for lists, which, values in (
        ([["correlation-id", "a"]], b"", b"k\x001\0l\x002\0"),
        ([], b"", b""),
        ([["a"], [], ["type", "b"]], b"\0\2", b"1\x002\x003\0"),
    ):
        body = pack(lists, which, values, struct.pack("<II", 3, 2), b"abcde")
        head = f"SENDMANY\ndestination:/queue/a\ntransaction:t\nmessages:2\ncontent-length:{len(body)}\n\n"
        found.append(head.encode() + body + b"\0")
    return found


def runs_of_messages() -> list[bytes]:
    """How many, and the body of a MESSAGES frame."""
    messages = [Message("queue://a", b"x" * size, {"n": "1"}, seq=size) for size in (1, 20)]
    records = [bytes(encode_message(message, 1)) for message in messages]  # type: ignore[arg-type]
    sizes = struct.pack("<II", *map(len, records))
    return [b"\2" + struct.pack("<III", 1, 1, 3) + sizes + b"".join(records), b"\0" + bytes(4)]


def openwire_messages() -> list[bytes]:
    producer = structure(table.PRODUCER_ID, connection="ID:h-1:1", session=1, value=1)
    fields = {
        "producer": producer,
        "destination": structure(table.QUEUE, name="a"),
        "persistent": True,
        "priority": 4,
        "id": structure(table.MESSAGE_ID, producer=producer, producer_sequence=1),
        "correlation_id": "c",
        "reply_to": structure(table.TEMP_QUEUE, name="ID:h-1:1:1"),
        "group_id": "g",
        "properties": encode_map({"color": "red", "count": Int32(5)}),
    }
    text = {**fields, "content": b"\0\0\0\2hi", "type": "t"}
    return [
        encode_structure(Structure(kind, each))
        for kind, each in ((table.MESSAGE, fields), (table.TEXT_MESSAGE, text), (table.MAP_MESSAGE, fields))
    ]


def openwire() -> list[bytes]:
    """Conversations: a login with what follows it."""
    options = encode_map({"MaxInactivityDuration": 30_000})
    hello = bytes((table.WIRE_FORMAT_INFO,)) + b"ActiveMQ" + (12).to_bytes(4) + optional_bytes(options)
    connection = structure(table.CONNECTION_ID, value="ID:h-1:1")
    consumer = structure(table.CONSUMER_ID, connection="ID:h-1:1", session=1, value=1)
    login = structure(table.CONNECTION_INFO, command_id=1, response_required=True, id=connection, client_id="c")
    start = len(hello).to_bytes(4) + hello + frame(login)
    consume = structure(
        table.CONSUMER_INFO, command_id=2, id=consumer, destination=structure(table.QUEUE, name="a"), prefetch=9
    )
    sends = b"".join([len(each).to_bytes(4) + each for each in openwire_messages()])
    return [start, start + frame(consume) + sends, start + sends + frame(structure(table.SHUTDOWN_INFO))]


def selectors() -> list[bytes]:
    return [
        b"",
        b"(color = 'red' OR price * 1.5E1 - 2 > -0x1FL) AND NOT color LIKE '_e!%%' ESCAPE '!'",
        b"price BETWEEN 1 AND 20 AND color NOT IN ('a', 'it''s') OR JMSPriority IN (4, 5) AND \"x-y\" IS NOT NULL",
        b"convert_string_expressions:flag <> TRUE AND price / 0 = 017 % 3",
        b"a LIKE '%a_%b%' OR a = b",
    ]
