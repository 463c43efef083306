"""The table that drives the STOMP tests: what a client sends, and the commands that it means.

`Case.frames` follow a CONNECT that agrees on each of `versions`. An error is written as its code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from amq.core.destination import ANY_REST, ANY_WORD, Pattern
from amq.core.errors import AmqError
from amq.core.message import BYTES, TEXT, Envelope, Message, lift
from amq.core.xid import Xid, Xids
from amq.protocols.commands import (
    OLDEST,
    Abort,
    AbortBatch,
    Begin,
    Browse,
    Command,
    Commit,
    CommitBatch,
    Credit,
    Disconnect,
    Filter,
    Finish,
    Flow,
    LeaseMessages,
    LeaseReading,
    Locate,
    Malformed,
    Mode,
    Outcome,
    Prepare,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    SettleLeases,
    SettleRun,
    Subscribe,
    Unsubscribe,
)
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import FrameLimits

PREFIX = "ID:1f3a-"
ALL = ("1.0", "1.1", "1.2")
ESCAPING = ("1.1", "1.2")
SMALL = FrameLimits(header_count_max=10, header_bytes_max=100, header_block_bytes_max=300, body_bytes_max=1000)


def plain(value: Any) -> Any:
    """Commands, messages and errors as comparable data."""
    if isinstance(value, Command | Message):
        names = {name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())}
        names -= {"token"}
        return (type(value).__name__, {name: plain(getattr(value, name)) for name in names})
    if isinstance(value, AmqError):
        return value.code
    return list(value) if isinstance(value, Xids) else value


def one_by_one(commands: Iterable[Command]) -> list[Any]:
    """`plain` of each, where several messages in one command are as many commands."""
    found: list[Any] = []
    for command in commands:
        if isinstance(command, SendMany):
            assert command.messages
            found += [plain(Send(message, None, command.transaction)) for message in command.messages]
        elif isinstance(command, SendRun | SettleRun):
            found += map(plain, command.one_by_one())
        else:
            found.append(plain(command))
    return found


def connect(version: str) -> bytes:
    accept = f"accept-version:{version}\nhost:h\n" if version != "1.0" else ""
    return f"CONNECT\n{accept}\n\0".encode()


def opened(version: str = "1.2", limits: FrameLimits = SMALL) -> StompCodec:
    codec = StompCodec(limits, PREFIX, "amq/1", True)
    assert len(codec.receive(connect(version))) == 1
    return codec


def error(code: str, receipt: str = "") -> Malformed:
    return Malformed(AmqError("", code=code), receipt or None)


def ack(
    seq: int, consumer: str, receipt: str | None = None, transaction: str = "", first: int | None = OLDEST
) -> Settle:
    return Settle(seq, consumer, receipt, transaction, Outcome.ACCEPTED, first)


def nack(
    seq: int, consumer: str, receipt: str | None = None, transaction: str = "", *, requeue: bool = False
) -> Settle:
    return Settle(seq, consumer, receipt, transaction, Outcome.FAILED if requeue else Outcome.REJECTED, OLDEST)


def sent(
    destination: str = "queue://a", body: bytes = b"", *, transaction: str = "", receipt: str = "", **more: Any
) -> Send:
    more["content"] = TEXT if more.pop("text", True) else BYTES
    return Send(Message(destination, body, **more), receipt or None, transaction)


@dataclass
class Case:
    name: str
    frames: bytes
    commands: list[Command]
    versions: tuple[str, ...] = ALL
    limits: FrameLimits = field(default=SMALL)


TO_A = b"SEND\ndestination:/queue/a\n"
SUB = b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\n\n\0"
SUBSCRIBED = Subscribe("s", "queue://a", Mode(True))

CASES = [
    # SEND
    Case("send text", TO_A + b"\nhi\0", [sent(body=b"hi")]),
    Case("send nothing", TO_A + b"\n\0", [sent()]),
    Case("send bytes", TO_A + b"content-length:3\n\na\0b\0", [sent(body=b"a\0b", text=False)]),
    Case("send CRLF", b"SEND\r\ndestination:/queue/a\r\ncontent-length:2\r\n\r\nhi\0", [sent(body=b"hi", text=False)]),
    Case("CRLF in part", TO_A + b"x:1\r\n\r\nhi\n\n\0", [sent(body=b"hi\n\n", properties={"x": "1"})], ("1.2",)),
    Case("body begins with a line end after a CRLF", TO_A + b"\r\n\nhi\0", [sent(body=b"\nhi")]),
    Case("body begins with line ends", TO_A + b"\n\n\r\nhi\0", [sent(body=b"\n\r\nhi")]),
    Case("heart-beats between frames", b"\n\r\n\nSEND\ndestination:/queue/a\n\nhi\0\n\n\r\n\n", [sent(body=b"hi")]),
    Case("two in a row", TO_A + b"\n1\0SEND\ndestination:/queue/b\n\n2\0", [sent(body=b"1"), sent("queue://b", b"2")]),
    Case(
        "destination forms",
        b"".join(
            b"SEND\ndestination:%b\n\n\0" % d
            for d in (
                b"/queue/a",
                b"queue://a",
                b"/topic/a",
                b"topic://a",
                b"/queue/a/b",
                b"/queue/a:b:c",
                "/queue/ü".encode(),
            )
        ),
        [
            sent(),
            sent(),
            sent("topic://a"),
            sent("topic://a"),
            sent("queue://a/b"),
            sent("queue://a:b:c"),
            sent("queue://ü"),
        ],
    ),
    Case("receipt", TO_A + b"receipt:r-1\n\n\0", [sent(receipt="r-1")]),
    Case("transaction", TO_A + b"transaction:t\nreceipt:r\n\n\0", [sent(transaction="t", receipt="r")]),
    Case(
        "every header",
        TO_A + b"persistent:false\npriority:9\nexpires:1700000000000\n"
        b"content-type:a/b\n_AMQ_DUPL_ID:d1\ncorrelation-id:c\nreply-to:/queue/r\ntype:t\nJMSXGroupID:g\n\n\0",
        [
            sent(
                persistent=False,
                priority=9,
                expires_ms=1700000000000,
                content_type="a/b",
                duplicate_id="d1",
                properties={"JMSXGroupID": "g"},
                envelope=Envelope(correlation_id="c", reply_to="queue://r", type="t"),
            )
        ],
    ),
    Case("persistent spelled in capitals", TO_A + b"persistent:False\n\n\0", [sent(persistent=False)]),
    Case("persistent", TO_A + b"persistent:true\n\n\0", [sent(persistent=True)]),
    Case(
        "amq-msg-type text",
        TO_A + b"content-length:1\namq-msg-type:text\n\nx\0",
        [sent(body=b"x", text=True, properties={"amq-msg-type": "text"})],
    ),
    Case(
        "amq-msg-type bytes",
        TO_A + b"amq-msg-type:bytes\n\nx\0",
        [sent(body=b"x", text=False, properties={"amq-msg-type": "bytes"})],
    ),
    Case(
        "forged headers",
        TO_A + b"message-id:1\nsubscription:s\nack:0-1\nredelivered:true\ntimestamp:1\nJMSXDeliveryCount:9\nx:y\n\n\0",
        [sent(properties={"x": "y"})],
    ),
    Case(
        "first of repeated headers counts",
        TO_A + b"x:1\ndestination:/queue/b\nx:2\n\n\0",
        [sent(properties={"x": "1"})],
    ),
    Case(
        "first of repeated content-lengths counts",
        TO_A + b"content-length:1\ncontent-length:9\n\nx\0",
        [sent(body=b"x", text=False)],
    ),
    Case("empty value", TO_A + b"x:\n\n\0", [sent(properties={"x": ""})]),
    Case("colon in value", TO_A + b"x:a:b\n\n\0", [sent(properties={"x": "a:b"})]),
    Case("escapes", TO_A + b"x\\cy:a\\nb\\\\n\\c\n\n\0", [sent(properties={"x:y": "a\nb\\n:"})], ESCAPING),
    Case("escaped CR", TO_A + b"x:\\r\\r\n\n\0", [sent(properties={"x": "\r\r"})], ("1.2",)),
    Case("1.0 has no escapes", TO_A + b"x:\\n\\t\n\n\0", [sent(properties={"x": "\\n\\t"})], ("1.0",)),
    Case(
        "1.0 trims",
        b"SEND\ndestination: /queue/a\n x : y \ncontent-length: 1\n\nz\0",
        [sent(body=b"z", text=False, properties={"x": "y"})],
        ("1.0",),
    ),
    Case("spaces count", TO_A + b" x : y \n\n\0", [sent(properties={" x ": " y "})], ESCAPING),
    Case("CR is data in 1.1", TO_A + b"x:a\r\n\n\0", [sent(properties={"x": "a\r"})], ("1.1",)),
    Case("CRLF in 1.1", b"SEND\r\ndestination:/queue/a\r\nx:a\r\n\r\n\0", [sent(properties={"x": "a"})]),
    # SUBSCRIBE, UNSUBSCRIBE
    Case("subscribe", b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0", [Subscribe("s", "queue://a")]),
    *(
        Case(
            f"ack {ack}",
            f"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:{ack}\n\n\0".encode(),
            [Subscribe("s", "queue://a", Mode(ack != "auto"))],
        )
        for ack in ("auto", "client", "client-individual")
    ),
    Case(
        "subscribe options",
        b"SUBSCRIBE\nid:s\ndestination:/queue/a\nselector:x = 1\nactivemq.prefetchSize:7\n"
        b"prefetch-count:3\nactivemq.exclusive:true\nactivemq.priority:3\nreceipt:r\nother:1\n\n\0",
        [Subscribe("s", "queue://a", Mode(False, exclusive=True, priority=3), Flow(7), Filter("x = 1"), receipt="r")],
    ),
    Case(
        "prefetch-count",
        b"SUBSCRIBE\nid:s\ndestination:/queue/a\nprefetch-count:3\n\n\0",
        [Subscribe("s", "queue://a", flow=Flow(3))],
    ),
    Case("subscribe twice", SUB + SUB, [SUBSCRIBED, error("SUBSCRIPTION_EXISTS")]),
    Case(
        "subscribe again",
        SUB + b"UNSUBSCRIBE\nid:s\nreceipt:u\n\n\0" + SUB,
        [SUBSCRIBED, Unsubscribe("s", "u"), SUBSCRIBED],
    ),
    Case(
        "subscribe without id",
        b"SUBSCRIBE\ndestination:/queue/a\nreceipt:r\n\n\0",
        [error("HEADER_MISSING", "r")],
        ESCAPING,
    ),
    Case("subscribe with empty id", b"SUBSCRIBE\nid:\ndestination:/queue/a\n\n\0", [error("HEADER_MISSING")]),
    Case(
        "1.0: destination is the id",
        b"SUBSCRIBE\ndestination:/queue/a\n\n\0UNSUBSCRIBE\ndestination:queue://a\n\n\0",
        [Subscribe("queue://a", "queue://a"), Unsubscribe("queue://a")],
        ("1.0",),
    ),
    Case(
        "1.0: unsubscribe by destination",
        SUB + b"UNSUBSCRIBE\ndestination:/queue/a\n\n\0",
        [SUBSCRIBED, Unsubscribe("s")],
        ("1.0",),
    ),
    Case(
        "1.0: unsubscribe by unknown destination",
        b"UNSUBSCRIBE\ndestination:/queue/a\n\n\0",
        [Unsubscribe("queue://a")],
        ("1.0",),
    ),
    Case("1.0: unsubscribe by nothing", b"UNSUBSCRIBE\n\n\0", [error("HEADER_MISSING")]),
    Case(
        "unsubscribe needs the id",
        SUB + b"UNSUBSCRIBE\ndestination:/queue/a\n\n\0",
        [SUBSCRIBED, error("HEADER_MISSING")],
        ESCAPING,
    ),
    Case("bad ack mode", b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:sometimes\n\n\0", [error("HEADER_INVALID")]),
    Case("bad prefetch", b"SUBSCRIBE\nid:s\ndestination:/queue/a\nprefetch-count:-1\n\n\0", [error("HEADER_INVALID")]),
    Case(
        "browser",
        b"SUBSCRIBE\nid:s\ndestination:/queue/a\nbrowser:true\n\n\0",
        [Subscribe("s", "queue://a", browse=Browse())],
    ),
    Case("perhaps a browser", b"SUBSCRIBE\nid:s\ndestination:/queue/a\nbrowser:1\n\n\0", [error("HEADER_INVALID")]),
    Case("no browser", b"SUBSCRIBE\nid:s\ndestination:/queue/a\nbrowser:false\n\n\0", [Subscribe("s", "queue://a")]),
    Case("subscribe to nothing", b"SUBSCRIBE\nid:s\n\n\0", [error("HEADER_MISSING")]),
    # ACK, NACK
    Case("credit", SUB + b"CREDIT\nid:s\ncredit:3\nreceipt:r\n\n\0", [SUBSCRIBED, Credit("s", 3, "r")]),
    Case("credit without id", b"CREDIT\ncredit:3\n\n\0", [error("HEADER_MISSING")]),
    Case("credit without number", b"CREDIT\nid:s\n\n\0", [error("HEADER_MISSING")]),
    Case("credit that is none", b"CREDIT\nid:s\ncredit:-1\n\n\0", [error("HEADER_INVALID")]),
    Case(
        "credit of a new subscription",
        SUB.replace(b"\n\n", b"\ncredit:0\n\n"),
        [Subscribe("s", "queue://a", Mode(True), Flow(credit=0))],
    ),
    Case(
        "lease",
        b"LEASE\ndestination:/queue/a\ncursor:c\nafter:7\nmessages:5\nbytes:9\ntimeout:3\nreceipt:r\n\n\0",
        [LeaseMessages(("queue://a",), "c", 7, 5, 9, 3, "r")],
    ),
    Case(
        "lease, no more said",
        b"LEASE\ndestination:/topic/a\ncursor:c\nmessages:0\nreceipt:r\n\n\0",
        [LeaseMessages(("topic://a",), "c", 0, 0, receipt="r")],
    ),
    *(
        Case(
            f"lease {missing}",
            b"LEASE\ndestination:/queue/a\ncursor:c\nmessages:1\nreceipt:r\n\n\0".replace(line, by),
            [error(code, "" if missing == "receipt" else "r")],
        )
        for missing, line, by, code in (
            ("receipt", b"receipt:r\n", b"", "HEADER_MISSING"),
            ("cursor", b"cursor:c\n", b"cursor:\n", "HEADER_MISSING"),
            ("destination", b"destination:/queue/a\n", b"", "HEADER_MISSING"),
            ("messages", b"messages:1\n", b"", "HEADER_MISSING"),
            ("messages", b"s:1", b"s:-1", "HEADER_INVALID"),
            ("after", b"cursor:c\n", b"cursor:c\nafter:1e3\n", "HEADER_INVALID"),
        )
    ),
    *(
        Case(
            f"{command} of leases",
            f"{command}\ndestination:/queue/a\ncursor:c\nthrough:7\nreceipt:r\n\n\0".encode(),
            [SettleLeases(("queue://a",), "c", 7, command == "COMMIT", "r")],
        )
        for command in ("COMMIT", "ABORT")
    ),
    Case("settle up to nothing", b"COMMIT\ndestination:/queue/a\ncursor:c\n\n\0", [error("HEADER_MISSING")]),
    Case(
        "settle a transaction",
        b"COMMIT\ndestination:/queue/a\ncursor:c\nthrough:1\ntransaction:t\n\n\0",
        [error("HEADER_INVALID")],
    ),
    Case(
        "read a lease",
        b"SUBSCRIBE\nid:s\ndestination:/queue/a\nbrowser:true\ncursor:c\nlease:7\npositions:0-5\n\n\0",
        [Subscribe("s", "queue://a", browse=Browse(reading=LeaseReading(7, "c", 0, 0, 5)))],
    ),
    Case("consume a lease", b"SUBSCRIBE\nid:s\ndestination:/queue/a\nlease:7\n\n\0", [error("HEADER_INVALID")]),
    Case("ack 1.2", SUB + b"ACK\nid:0-17\n\n\0", [SUBSCRIBED, ack(17, "s")], ("1.2",)),
    Case("ack 1.2 CRLF", SUB + b"ACK\r\nid:0-17\r\n\r\n\0", [SUBSCRIBED, ack(17, "s")], ("1.2",)),
    Case(
        "ack 1.2 with everything",
        SUB + b"ACK\nid:0-17\ntransaction:t\nreceipt:r\n\n\0",
        [SUBSCRIBED, ack(17, "s", "r", "t")],
        ("1.2",),
    ),
    Case(
        "nack 1.2",
        SUB + b"NACK\nid:0-17\ntransaction:t\nreceipt:r\n\n\0",
        [SUBSCRIBED, nack(17, "s", "r", "t")],
        ("1.2",),
    ),
    Case(
        "nack with requeue",
        SUB + b"NACK\nid:0-17\nrequeue:true\n\n\0",
        [SUBSCRIBED, nack(17, "s", requeue=True)],
        ("1.2",),
    ),
    Case(
        "nack with perhaps",
        SUB + b"NACK\nid:0-17\nrequeue:1\nreceipt:r\n\n\0",
        [SUBSCRIBED, error("HEADER_INVALID", "r")],
        ("1.2",),
    ),
    Case(
        "ack after unsubscribe",
        SUB + b"UNSUBSCRIBE\nid:s\n\n\0" + SUB + b"ACK\nid:0-17\n\n\0ACK\nid:1-18\n\n\0",
        [SUBSCRIBED, Unsubscribe("s"), SUBSCRIBED, ack(17, "s"), ack(18, "s")],
        ("1.2",),
    ),
    *(
        Case(
            f"ack of {id!r}",
            SUB + f"ACK\nid:{id}\nreceipt:r\n\n\0".encode(),
            [SUBSCRIBED, error("ACK_ID_UNKNOWN", "r")],
            ("1.2",),
        )
        for id in ("1-17", "0", "0-", "-17", "00-17", "0-1x", "0- 1", "0--1", "0-1_0", "0-" + "9" * 20, "0-٣", "17")
    ),
    *(
        Case(
            f"ack of {id!r}, nothing else",
            SUB + f"ACK\nid:{id}\n\n\0".encode(),
            [SUBSCRIBED, error("ACK_ID_UNKNOWN")],
            ("1.2",),
        )
        for id in ("1-17", "0", "0-", "-17", "00-17", "0-1x", "0- 1", "0--1", "0-1_0", "0-" + "9" * 20, "0-٣", "17")
    ),
    Case(
        "ack without id", SUB + b"ACK\nmessage-id:ID\\c1f3a-17\n\n\0", [SUBSCRIBED, error("HEADER_MISSING")], ("1.2",)
    ),
    Case(
        "ack 1.1",
        SUB + b"ACK\nmessage-id:ID\\c1f3a-17\nsubscription:s\ntransaction:t\n\n\0",
        [SUBSCRIBED, ack(17, "s", None, "t")],
        ("1.1",),
    ),
    Case(
        "ack 1.1, colon not escaped",
        SUB + b"ACK\nmessage-id:ID:1f3a-17\nsubscription:s\n\n\0",
        [SUBSCRIBED, ack(17, "s")],
        ("1.1",),
    ),
    Case(
        "nack 1.1", SUB + b"NACK\nmessage-id:ID\\c1f3a-17\nsubscription:s\n\n\0", [SUBSCRIBED, nack(17, "s")], ("1.1",)
    ),
    Case(
        "ack 1.1 without subscription",
        SUB + b"ACK\nmessage-id:ID\\c1f3a-17\n\n\0",
        [SUBSCRIBED, error("HEADER_MISSING")],
        ("1.1",),
    ),
    Case("ack 1.1 by id", SUB + b"ACK\nid:0-17\n\n\0", [SUBSCRIBED, error("HEADER_MISSING")], ("1.0", "1.1")),
    Case(
        "ack 1.0",
        SUB + b"ACK\nmessage-id:ID:1f3a-17\ntransaction:t\nreceipt:r\n\n\0",
        [SUBSCRIBED, ack(17, "", "r", "t")],
        ("1.0",),
    ),
    *(
        Case(
            f"ack of message-id {id!r}",
            SUB + f"ACK\nsubscription:s\nmessage-id:{id}\n\n\0".encode(),
            [SUBSCRIBED, error("ACK_ID_UNKNOWN")],
            ("1.0", "1.1"),
        )
        for id in ("ID:1f3b-17", "17", "ID:1f3a-", "ID:1f3a-1x", "ID:1f3a-" + "9" * 20)
    ),
    Case("1.0 has no NACK", b"NACK\nmessage-id:ID:1f3a-17\n\n\0", [error("COMMAND_UNKNOWN")], ("1.0",)),
    # transactions
    Case("begin", b"BEGIN\ntransaction:t\nreceipt:r\n\n\0", [Begin("t", "r")]),
    Case("commit", b"COMMIT\ntransaction:t\nreceipt:r\n\n\0", [Commit("t", "r")]),
    Case(
        "prepare",
        b"COMMIT\ntransaction:t\nphase:prepare\nxid:x/1\ntimeout:5\nowner:o\nbatch:7\nreceipt:r\n\n\0",
        [Prepare("t", "x/1", 5, "o", 7, "r")],
    ),
    Case("prepare, no more said", b"COMMIT\ntransaction:t\nphase:prepare\nxid:x\n\n\0", [Prepare("t", "x")]),
    Case(
        "prepare a binary xid",
        b"COMMIT\ntransaction:t\nphase:prepare\nxid:xa\\c-1\\cab00\\c\n\n\0",
        [Prepare("t", Xid(-1, b"\xab\0", b""))],
        ("1.1", "1.2"),
    ),
    Case(
        "abort a binary xid",
        b"ABORT\nxid:xa\\c7\\c\\cff\n\n\0",
        [Finish(Xid(7, b"", b"\xff"), False)],
        ("1.1", "1.2"),
    ),
    Case(
        "commit what only looks binary",
        b"COMMIT\nxid:xa\\c7\\cFF\\cff\n\n\0",
        [Finish("xa:7:FF:ff", True)],
        ("1.1", "1.2"),
    ),
    Case(
        "a batch of both",
        b'COMMIT\nowner:o\nbatch:1\nxids:x,xa\\c1\\c00\\c\n\n{"xids": ["xa:1:01:"]}\0',
        [CommitBatch("o", 1, ["x", Xid(1, b"\0", b""), Xid(1, b"\1", b"")])],
        ("1.1", "1.2"),
    ),
    Case("commit an xid", b"COMMIT\nxid:x\nreceipt:r\n\n\0", [Finish("x", True, "r")]),
    Case("abort an xid", b"ABORT\nxid:x\n\n\0", [Finish("x", False)]),
    Case(
        "commit a batch of series",
        b"COMMIT\nowner:o\nbatch:7\nxids:a\nseries:b*2\nseries.1:c*1,d.0*1\n\n\0",
        [CommitBatch("o", 7, ["a", "b.0", "b.1", "c.0", "d.0.0"])],
    ),
    Case(
        "commit a batch",
        b"COMMIT\nowner:o\nbatch:7\nxids:a,b\nxids.1:c\n\n\0",
        [CommitBatch("o", 7, ["a", "b", "c"])],
    ),
    Case(
        "commit a batch that a body names",
        b"COMMIT\nowner:o\nbatch:7\nxids:a\nseries:b*1\nrows:5\nchecksum:18446744073709551615\nreceipt:r\n\n"
        b'{"series": ["c*2"], "xids": ["d"]}\0',
        [CommitBatch("o", 7, ["a", "d", "b.0", "c.0", "c.1"], "r", (5, 2**64 - 1))],
    ),
    Case("roll back an owner", b"ABORT\nowner:o\nreceipt:r\n\n\0", [AbortBatch("o", None, None, "r")]),
    Case("roll back a batch", b"ABORT\nowner:o\nbatch:7\n\n\0", [AbortBatch("o", 7)]),
    Case(
        "roll back parts of a batch",
        b'ABORT\nowner:o\nbatch:7\nxids:a\n\n{"xids": ["b"]}\0',
        [AbortBatch("o", 7, ["a", "b"])],
    ),
    *(
        Case(f"{frame!r}", frame + b"\0", [error(code)])
        for frame, code in (
            (b"COMMIT\nowner:o\nbatch:1\n\n[]", "BODY_INVALID"),
            (b"COMMIT\nowner:o\nbatch:1\n\n{", "BODY_INVALID"),
            (b'COMMIT\nowner:o\nbatch:1\n\n{"xids": [1]}', "BODY_INVALID"),
            (b'COMMIT\nowner:o\nbatch:1\n\n{"series": ["c"]}', "HEADER_INVALID"),
            (b"COMMIT\nowner:o\nbatch:1\nrows:1\n\n", "HEADER_MISSING"),
            (b"COMMIT\nowner:o\nbatch:1\nrows:1\nchecksum:18446744073709551616\n\n", "HEADER_INVALID"),
            (b"ABORT\nowner:o\nxids:a\n\n", "HEADER_MISSING"),
            (b"ABORT\nowner:o\nxid:a\n\n", "HEADER_INVALID"),
            (b"ABORT\nowner:o\ntransaction:t\n\n", "HEADER_INVALID"),
            (b"ABORT\nowner:\n\n", "HEADER_INVALID"),
        )
    ),
    Case("a body without a batch", b"COMMIT\ntransaction:t\n\nx\0", [error("BODY_UNEXPECTED")], ESCAPING),
    Case("where", b"WHERE\ndestination:/queue/a\nreceipt:r\n\n\0", [Locate(("queue://a",), "r")]),
    Case("where, without an answer", b"WHERE\ndestination:/queue/a\n\n\0", [error("HEADER_MISSING")]),
    Case("where is what", b"WHERE\nreceipt:r\n\n\0", [error("HEADER_MISSING", "r")]),
    Case(
        "take a cursor",
        b"LEASE\ndestination:/queue/a\ncursor:c\nmessages:0\ntake:true\nreceipt:r\n\n\0",
        [LeaseMessages(("queue://a",), "c", 0, 0, 0, 0, "r", True)],
    ),
    Case(
        "lease with an epoch",
        b"LEASE\ndestination:/queue/a\ncursor:c\nmessages:9\nepoch:7\nreceipt:r\n\n\0",
        [LeaseMessages(("queue://a",), "c", 0, 9, 0, 0, "r", False, 7)],
    ),
    Case(
        "settle with an epoch",
        b"COMMIT\ndestination:/queue/a\ncursor:c\nthrough:9\nepoch:7\n\n\0",
        [SettleLeases(("queue://a",), "c", 9, True, None, 7)],
    ),
    *(
        Case(
            f"LEASE with {header!r}",
            b"LEASE\ndestination:/queue/a\ncursor:c\nmessages:0\nreceipt:r\n" + header + b"\n\n\0",
            [error("HEADER_INVALID", "r")],
        )
        for header in (b"take:1", b"epoch:x")
    ),
    Case("commit an empty batch", b"COMMIT\nowner:o\nbatch:0\n\n\0", [CommitBatch("o", 0, [])]),
    Case("commit with outcome", b"COMMIT\ntransaction:t\namq-outcome-id:o\n\n\0", [Commit("t", None, "o")]),
    Case("abort", b"ABORT\ntransaction:t\nreceipt:r\n\n\0", [Abort("t", "r")]),
    *(
        Case(f"COMMIT of {headers!r}", b"COMMIT\n" + headers + b"\n\n\0", [error(code)])
        for headers, code in (
            (b"transaction:t\nphase:commit\nxid:x", "HEADER_INVALID"),
            (b"transaction:t\nphase:prepare", "HEADER_MISSING"),
            (b"phase:prepare\nxid:x", "HEADER_MISSING"),
            (b"transaction:t\nxid:x", "PROTOCOL_ERROR"),
            (b"transaction:t\nphase:prepare\nxid:x\nowner:o", "HEADER_MISSING"),
            (b"xid:", "HEADER_INVALID"),
            (b"xid:x\nowner:o\nbatch:1", "HEADER_INVALID"),
            (b"owner:o\nbatch:-1", "HEADER_INVALID"),
            (b"owner:o\nxids:x", "HEADER_MISSING"),
            (b"owner:o\nbatch:1\nseries:x", "HEADER_INVALID"),
            (b"owner:o\nbatch:1\nseries:x*0", "HEADER_INVALID"),
            (b"owner:o\nbatch:1\nseries:*1", "HEADER_INVALID"),
            (b"owner:o\nbatch:1\nseries:x*100001", "HEADER_INVALID"),
            (b"owner:o\nbatch:1\nseries:x*99999,y*2", "HEADER_INVALID"),
            (b"transaction:t\nphase:prepare\nxid:x\ntimeout:1s", "HEADER_INVALID"),
        )
    ),
    Case("abort of both", b"ABORT\ntransaction:t\nxid:x\n\n\0", [error("PROTOCOL_ERROR")]),
    *(
        Case(f"{command} of nothing", f"{command}\n\n\0".encode(), [error("HEADER_MISSING")])
        for command in ("BEGIN", "COMMIT", "ABORT")
    ),
    *(
        Case(f"{head[:5]!r} in an unnamed transaction", head + b"\ntransaction:\n\n\0", [error("HEADER_INVALID")])
        for head in (b"BEGIN", b"SEND\ndestination:/queue/a")
    ),
    # DISCONNECT
    Case("disconnect", b"DISCONNECT\nreceipt:bye\n\n\0", [Disconnect("bye")]),
    Case("nothing after disconnect", b"DISCONNECT\n\n\0SEND\ndestination:/queue/a\n\n\0rubbish", [Disconnect()]),
    # frames that are refused
    Case("second connect", b"CONNECT\n\n\0", [error("PROTOCOL_ERROR")]),
    Case("second stomp", b"STOMP\n\n\0", [error("PROTOCOL_ERROR")]),
    *(
        Case(f"client sends {command}", f"{command}\nreceipt:r\n\n\0".encode(), [error("COMMAND_UNKNOWN", "r")])
        for command in ("MESSAGE", "RECEIPT", "ERROR", "CONNECTED", "HELLO")
    ),
    Case("lower case", b"send\ndestination:/queue/a\n\n\0", [error("FRAME_INVALID")]),
    Case("noise", b"\x16\x03\x01\x02\x00\x01\x00", [error("FRAME_INVALID")]),
    Case("long command", b"A" * 17, [error("FRAME_INVALID")]),
    Case("nothing after an error", b"HELLO\n\n\0SEND\ndestination:/queue/a\n\n\0", [error("COMMAND_UNKNOWN")]),
    Case("good frames before the error count", TO_A + b"\nhi\0hello\n", [sent(body=b"hi"), error("FRAME_INVALID")]),
    Case("no colon", TO_A + b"foo\n\n\0", [error("HEADER_INVALID")]),
    Case("no name", TO_A + b":foo\n\n\0", [error("HEADER_INVALID")]),
    Case("not UTF-8", TO_A + b"x:\xff\n\n\0", [error("HEADER_INVALID")]),
    Case("bare CR", TO_A + b"x:a\rb\n\n\0", [error("HEADER_INVALID")], ("1.2",)),
    Case("undefined escape", TO_A + b"x:\\t\n\n\0", [error("ESCAPE_UNDEFINED")], ESCAPING),
    Case("unfinished escape", TO_A + b"x:\\\n\n\0", [error("ESCAPE_UNDEFINED")], ESCAPING),
    Case("undefined escape in a name", TO_A + b"\\t:x\n\n\0", [error("ESCAPE_UNDEFINED")], ESCAPING),
    Case("1.1 has no \\r", TO_A + b"x:\\r\n\n\0", [error("ESCAPE_UNDEFINED")], ("1.1",)),
    *(
        Case(
            f"composite destination {written}",
            f"SEND\ndestination:{written}\n\n\0".encode(),
            [SendToMany(Message(full, b"", content=TEXT), tuple(full.split(",")))],
        )
        for written, full in (
            ("/queue/a,b", "queue://a,queue://b"),
            ("/topic/a,b,/queue/c", "topic://a,topic://b,queue://c"),
            ("queue://a,topic://b", "queue://a,topic://b"),
        )
    ),
    Case("the same destination twice", b"SEND\ndestination:/queue/a,a\n\n\0", [sent()]),
    Case(
        "subscribe to many",
        b"SUBSCRIBE\nid:s\ndestination:/queue/a,b.*,/topic/c.>,a\n\n\0",
        [
            Subscribe(
                "s",
                ("queue://a", Pattern("queue://", ("b", ANY_WORD)), Pattern("topic://", ("c", ANY_REST)), "topic://a"),
            )
        ],
    ),
    *(
        Case(f"send to the wildcard {name}", f"SEND\ndestination:{name}\n\n\0".encode(), [error("DESTINATION_REFUSED")])
        for name in ("/queue/a.*", "/topic/>", "/queue/a,b.>")
    ),
    Case(
        "ack of a consumer that acknowledges one by one",
        SUB.replace(b"client", b"client-individual") + b"ACK\nid:0-17\n\n\0",
        [SUBSCRIBED, ack(17, "s", first=None)],
        ("1.2",),
    ),
    Case("credit taken back", SUB + b"CREDIT\nid:s\ncredit:0\n\n\0", [SUBSCRIBED, Credit("s", 0, drain=True)]),
    *(
        Case(f"option {name}", SUB.replace(b"\n\n", f"\n{name}\n\n".encode()), [error(code)])
        for name, code in (
            ("activemq.exclusive:perhaps", "OPTION_INVALID"),
            ("activemq.priority:128", "OPTION_INVALID"),
            ("activemq.maximumPendingMessageLimit:-2", "OPTION_INVALID"),
            ("credit:-1", "OPTION_INVALID"),
        )
    ),
    Case(
        "every option",
        SUB.replace(
            b"\n\n",
            b"\nactivemq.noLocal:true\nactivemq.retroactive:TRUE\nactivemq.shared:true\n"
            b"activemq.maximumPendingMessageLimit:-1\nactivemq.subscriptionName:d\nactivemq.other:1\n\n",
        ),
        [
            Subscribe(
                "s",
                "queue://a",
                Mode(True, shared=True),
                Flow(pending_limit=-1),
                Filter(no_local=True, retroactive=True),
                subscription_name="d",
            )
        ],
    ),
    Case("no destination", b"SEND\nreceipt:r\n\n\0", [error("HEADER_MISSING", "r")]),
    Case("empty destination", b"SEND\ndestination:\n\n\0", [error("HEADER_MISSING")]),
    *(
        Case(f"destination {name}", f"SEND\ndestination:{name}\n\n\0".encode(), [error("DESTINATION_INVALID")])
        for name in (
            "/queue/",
            "topic://",
            "/temp-queue/",
            "temp-topic://",
            "/remote-temp-queue/",
            "/queue/a,",
            ",/queue/a",
            "/queue/a,/topic/",
            "/queue/a\x01",
        )
    ),
    *(
        Case(
            f"temporary destination {written}",
            f"SEND\ndestination:{written}\n\n\0".encode(),
            [sent(destination=full, text=True)],
        )
        for written, full in (
            ("/temp-queue/a", "temp-queue://0-0.a"),
            ("temp-topic://a.b", "temp-topic://0-0.a.b"),
            ("/remote-temp-queue/3-17.a", "temp-queue://3-17.a"),
            ("/remote-temp-topic/0-0.a", "temp-topic://0-0.a"),
        )
    ),
    *(
        Case(
            f"reply-to {written}",
            f"SEND\ndestination:/queue/a\nreply-to:{written}\n\n\0".encode(),
            [sent(envelope=lift({"reply-to": known}))],
        )
        for written, known in (
            ("/temp-queue/a", "/remote-temp-queue/0-0.a"),
            ("/temp-topic/a", "/remote-temp-topic/0-0.a"),
            ("/queue/a", "/queue/a"),
            ("/remote-temp-queue/3-1.a", "/remote-temp-queue/3-1.a"),
            ("anything", "anything"),
        )
    ),
    Case("reply-to without a name", TO_A + b"reply-to:/temp-queue/\n\n\0", [error("DESTINATION_INVALID")]),
    Case(
        "line break in destination", b"SEND\ndestination:/queue/a\\nb\n\n\0", [error("DESTINATION_INVALID")], ESCAPING
    ),
    *(
        Case(f"{line}", f"SEND\ndestination:/queue/a\n{line}\n\n\0".encode(), [error("HEADER_INVALID")])
        for line in (
            "priority:10",
            "priority:-1",
            "priority:x",
            "priority:",
            "priority:٣",
            "expires:-1",
            "expires:soon",
            "expires:" + "9" * 20,
            "persistent:yes",
            "persistent:",
        )
    ),
    *(
        Case(
            f"content-length {n}",
            f"SEND\ndestination:/queue/a\nreceipt:r\ncontent-length:{n}\n\nxyz\0".encode(),
            [error("CONTENT_LENGTH_INVALID", "r")],
        )
        for n in ("-1", "x", "", "1.0", "+3", "٣", "0x3", "1_0")
    ),
    Case("content-length too small", TO_A + b"content-length:1\n\nxyz\0", [error("FRAME_UNTERMINATED")]),
    Case(
        "content-length with zeros",
        TO_A + b"content-length:" + b"0" * 30 + b"3\n\nxyz\0",
        [sent(body=b"xyz", text=False)],
    ),
    Case("body of ACK", SUB + b"ACK\nid:0-17\n\nx\0", [SUBSCRIBED, error("BODY_UNEXPECTED")], ("1.2",)),
    Case(
        "length of an ACK without a body",
        SUB + b"ACK\nid:0-17\ncontent-length:5\n\n\0" + TO_A + b"\nhi\0",
        [SUBSCRIBED, ack(17, "s"), sent(body=b"hi")],
        ("1.2",),
    ),
    Case(
        "length of other frames without a body",
        b"BEGIN\ntransaction:t\ncontent-length:9\n\n\0"
        b"ABORT\ncontent-length:999999999999\ntransaction:t\n\n\0" + TO_A + b"\nhi\0",
        [Begin("t"), Abort("t"), sent(body=b"hi")],
    ),
    Case(
        "line end in frames without a body",
        b"BEGIN\ntransaction:t\n\n\n\0ABORT\ntransaction:t\n\n\r\n\0" + TO_A + b"\nhi\0",
        [Begin("t"), Abort("t"), sent(body=b"hi")],
    ),
    Case("body of BEGIN", b"BEGIN\ntransaction:t\n\nx\0", [error("BODY_UNEXPECTED")], ESCAPING),
    Case("1.0 does not forbid a body", b"BEGIN\ntransaction:t\n\nx\0", [Begin("t")], ("1.0",)),
    # limits (of SMALL)
    Case(
        "10 headers",
        TO_A + b"".join(b"%d:\n" % n for n in range(9)) + b"\n\0",
        [sent(properties={str(n): "" for n in range(9)})],
    ),
    Case("11 headers", TO_A + b"".join(b"%d:\n" % n for n in range(10)) + b"\n\0", [error("HEADERS_TOO_MANY")]),
    Case("11 equal headers", b"SEND\n" + b"destination:/queue/a\n" * 11 + b"\n\0", [error("HEADERS_TOO_MANY")]),
    Case("header of 100 bytes", TO_A + b"x:" + b"y" * 98 + b"\n\n\0", [sent(properties={"x": "y" * 98})]),
    Case("header of 101 bytes", TO_A + b"x:" + b"y" * 99 + b"\n\n\0", [error("HEADER_TOO_LONG")]),
    Case(
        "headers of 300 bytes",
        b"BEGIN\ntransaction:t\n" + (b"x:" + b"y" * 88 + b"\n") * 3 + b"z:45678\n\n\0",
        [Begin("t")],
    ),
    Case(
        "headers of 301 bytes",
        b"BEGIN\ntransaction:t\n" + (b"x:" + b"y" * 88 + b"\n") * 3 + b"z:456789\n\n\0",
        [error("HEADERS_TOO_BIG")],
    ),
    Case("body of 1000 bytes", TO_A + b"\n" + b"x" * 1000 + b"\0", [sent(body=b"x" * 1000)]),
    Case("body of 1001 bytes", TO_A + b"receipt:r\n\n" + b"x" * 1001 + b"\0", [error("BODY_TOO_BIG", "r")]),
    Case(
        "content-length 1000",
        TO_A + b"content-length:1000\n\n" + b"x" * 1000 + b"\0",
        [sent(body=b"x" * 1000, text=False)],
    ),
    *(
        Case(
            f"content-length {n[:5]}…, told at once",
            f"SEND\ndestination:/queue/a\nreceipt:r\ncontent-length:{n}\n\n".encode(),
            [error("BODY_TOO_BIG", "r")],
        )
        for n in ("1001", "9" * 18, "9" * 19, "9" * 40)
    ),
]
