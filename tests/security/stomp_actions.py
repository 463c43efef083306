"""What a user can do with names in STOMP."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from amq.protocols.codec import Codec
from amq.protocols.commands import Command
from amq.protocols.stomp import runs
from amq.protocols.stomp.codec import StompCodec
from tests.security.user_client import BOTH, CLIENT_ID, EMPTY, QUEUE, TOPIC, Action, Connected

_BEGIN = "BEGIN\ntransaction:t\nreceipt:b\n\n\0"
_DURABLE = f"SUBSCRIBE\nid:1\ndestination:/topic/{TOPIC}\nreceipt:u\nactivemq.subscriptionName:"
_THROUGH = 1 << 60  # all leases


def connect(name: str, number: str) -> tuple[Codec | None, list[Command]]:
    server = StompCodec(owner=f"{number}.")
    hello = (
        f"CONNECT\naccept-version:1.2\nhost:/\nclient-id:{CLIENT_ID}\namq-client-instance:ID:host-{name}:1\n"
        f"{runs.HEADER}:{runs.VERSION}\n\n\0"
    )
    return server, server.receive(hello.encode())


def _frame(command: str, body: bytes = b"", **headers: object) -> bytes:
    """`_` in the name of a header is `-`."""
    lines = "".join(f"{key.replace('_', '-')}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def _shared(name: str, body: bytes, more: str = "") -> str:
    return (
        f"SEND\ndestination:/queue/{QUEUE}\n_AMQ_DUPL_ID:{name}\nreceipt:s\npersistent:true\n{more}\n{body.decode()}\0"
    )


def _commit(name: str) -> str:
    return f"COMMIT\ntransaction:t\namq-outcome-id:outcome {name}\nreceipt:c\n\n\0"


def _prepare(client: Connected, name: str, body: bytes) -> None:
    send = _shared(f"p{name}", body, "transaction:t\n").replace(f"_AMQ_DUPL_ID:p{name}\n", "")
    client.say(_BEGIN, send, f"COMMIT\ntransaction:t\nphase:prepare\nxid:xid {name}\nreceipt:p\n\n\0")


def _prepare_batch(client: Connected, name: str, body: bytes) -> None:
    prepare = {"transaction": "t", "phase": "prepare", "xid": f"xid {name}", "owner": f"owner{name}", "batch": 7}
    client.say(_BEGIN, _shared("", body, "transaction:t\n"), _frame("COMMIT", **prepare, receipt="p"))


def _end(command: str) -> Action:
    return lambda client, name, _: client.say(f"{command}\nxid:xid {name}\nreceipt:f\n\n\0")


def _end_batch(command: str, **more: str) -> Action:
    def act(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
        headers = {key: value.format(name) for key, value in more.items()}
        client.say(_frame(command, owner=f"owner{name}", **headers, receipt="e"))

    return act


def _open(client: Connected, name: str, body: bytes) -> None:
    own, temporary = f"/queue/{client.own}", "/temp-queue/x"
    client.say(
        _frame("SUBSCRIBE", id=name, destination=own, ack="client-individual", receipt="u"),
        _frame("SUBSCRIBE", id=f"pull {name}", destination=temporary, ack="client", credit=0, receipt="u"),
        *(_frame("SEND", body + b" %d" % number, destination=own) for number in range(3)),
        _frame("SEND", body, destination=temporary),
        _frame("CREDIT", id=f"pull {name}", credit=1, receipt="c"),
    )


def _settle(client: Connected, name: str, body: bytes) -> None:
    first, second, third, *others = client.numbers(name, 5)
    own, again = f"/queue/{client.own}", body + b" again"
    many = runs.pack([], b"", b"", struct.pack("<I", len(again)), again)
    client.say(
        _BEGIN,
        _frame("SENDMANY", many, destination=own, messages=1, transaction="t", content_length=len(many)),
        _frame("SEND", again, destination=f"{own},{own}.2", transaction="t"),
        _frame("ACK", id=f"0-{first}", transaction="t", receipt="s"),
        _frame("NACK", id=f"0-{second}", transaction="t", receipt="s"),
        _frame("ABORT", transaction="t", receipt="a"),
        _frame("ACK", id=f"0-{third}", receipt="s"),
        *[_frame("ACK", id=f"0-{seq}") for seq in others],
    )


def _leave(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    client.say(
        _frame("UNSUBSCRIBE", id=name, receipt="u"),
        _frame("UNSUBSCRIBE", id=f"pull {name}", receipt="u"),
        _frame("DISCONNECT", receipt="d"),
    )


def _lease(client: Connected, name: str, body: bytes) -> None:
    client.say(_frame("SEND", body, destination=f"/queue/{client.own}"))
    client.world.settle()
    for source in (f"/queue/{client.own}", f"/topic/{TOPIC}"):
        client.say(_frame("LEASE", destination=source, cursor=name, messages=5, take="true", receipt="l"))
        client.world.settle()
        reading = {"destination": source, "lease": client.lease(), "cursor": name, "browser": "true"}
        client.say(_frame("SUBSCRIBE", id=f"read {source}", **reading, receipt="u"))
        client.world.settle()


def _lease_shared(client: Connected, name: str, body: bytes) -> None:
    place = {"destination": f"/queue/{BOTH}", "cursor": name}
    after = client.leases.get(name, 0)
    client.say(_frame("SEND", body, destination=place["destination"]))
    client.world.settle()
    client.say(_frame("LEASE", **place, after=after, messages=1, receipt="l"))
    lease = client.learn_lease(name)
    client.say(_frame("SUBSCRIBE", id="read", **place, lease=lease, browser="true", receipt="u"))


def _ask(take: bool = False) -> Action:
    """Take a cursor of the queue that both users read, or use it in the epoch of its user."""

    def act(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
        epoch = {} if take else {"epoch": client.epochs.get(name, 0)}
        lease = {"destination": f"/queue/{EMPTY}", "cursor": name, "messages": 0, "take": str(take).lower(), **epoch}
        client.say(_frame("LEASE", **lease, receipt="l"))
        client.learn_epoch(name)

    return act


def _settle_leases(command: str) -> Action:
    return lambda client, name, _: client.say(
        *(
            _frame(command, destination=source, cursor=name, through=_THROUGH, receipt="s")
            for source in (f"/queue/{client.own}", f"/topic/{TOPIC}")
        )
    )


ACTIONS: Mapping[str, Action] = {
    "subscribe": lambda client, name, _: client.say(f"{_DURABLE}{name}\n\n\0"),
    "open": _open,
    "settle": _settle,
    "leave": _leave,
    "commit": lambda client, name, body: client.say(_BEGIN, _shared(name, body, "transaction:t\n"), _commit(name)),
    "send": lambda client, name, body: client.say(_shared(name, body)),
    "commit nothing": lambda client, name, _: client.say(_BEGIN, _commit(name)),
    "ask": lambda client, name, _: client.say(_commit(name)),
    "prepare a batch": _prepare_batch,
    "commit a batch": _end_batch("COMMIT", batch="7", xids="xid {}"),
    "abort some of a batch": _end_batch("ABORT", batch="7", xids="xid {}"),
    "abort batches": _end_batch("ABORT"),
    "prepare": _prepare,
    "end": _end("COMMIT"),
    "roll back": _end("ABORT"),
    "lease": _lease,
    "lease of a shared queue": _lease_shared,
    "take a cursor": _ask(take=True),
    "use a cursor": _ask(),
    "commit shared leases": lambda client, name, _: client.say(
        _frame("COMMIT", destination=f"/queue/{BOTH}", cursor=name, through=_THROUGH, receipt="s")
    ),
    "commit leases": _settle_leases("COMMIT"),
    "return leases": _settle_leases("ABORT"),
    "browse": lambda client, name, _: client.say(
        _frame("SUBSCRIBE", id=name, destination=f"/queue/{client.own}", browser="true", receipt="u")
    ),
    "schedule": lambda client, name, body: client.say(
        _shared(f"later {name}", body, "AMQ_SCHEDULED_DELAY:1000000\n"),
        _frame("SEND", destination="/topic/ActiveMQ.Scheduler.Management", AMQ_SCHEDULER_ACTION="REMOVEALL").replace(
            b"AMQ-SCHEDULER-ACTION", b"AMQ_SCHEDULER_ACTION"
        ),
    ),
    "unsubscribe": lambda client, name, _: client.say(
        f"UNSUBSCRIBE\nid:1\nreceipt:u\nactivemq.subscriptionName:{name}\n\n\0"
    ),
}
