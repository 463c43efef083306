"""What a user can do with names in the contract itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amq.broker.scheduling.scheduler import ACTION, JOB_ID, MANAGEMENT
from amq.broker.scheduling.timing import DELAY
from amq.core.destination import QUEUE_SCHEME, TOPIC_SCHEME
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.protocols.codec import Codec
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    AskDecision,
    Begin,
    Browse,
    CloseProducer,
    CloseSession,
    Command,
    Commit,
    CommitBatch,
    Connect,
    Credit,
    Decide,
    Disconnect,
    EndPart,
    Extend,
    Finish,
    Flow,
    ForgetOutcome,
    InSession,
    Invalid,
    LeaseMessages,
    LeaseReading,
    ListPrepared,
    MakeTemporary,
    Mode,
    OpenProducer,
    OpenSession,
    Prepare,
    PreparePart,
    RemoveTemporary,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    SettleAgain,
    SettleIfHeld,
    SettleLeases,
    SettleRun,
    SettleSet,
    Subscribe,
    Unsubscribe,
)
from tests.security.user_client import BOTH, CLIENT_ID, EMPTY, NAMES, QUEUE, TOPIC, Action, Connected

SHARED, SHARED_LEASES, TOPIC_NAME = QUEUE_SCHEME + QUEUE, QUEUE_SCHEME + BOTH, TOPIC_SCHEME + TOPIC
THROUGH = 1 << 60  # all leases


def connect(name: str, number: str) -> tuple[Codec | None, list[Command]]:  # noqa: ARG001
    return None, [Connect(client_id=CLIENT_ID, instance=f"ID:host-{name}:1")]


def _send(client: Connected, name: str, body: bytes) -> None:
    client.tell(Send(Message(SHARED, body, duplicate_id=name), "r"))


def _commit(client: Connected, name: str, body: bytes) -> None:
    sent = Send(Message(SHARED, body, duplicate_id=name), "s", "t")
    client.tell(Begin("t", "b"), sent, Commit("t", "c", f"outcome {name}"))


def _prepare(client: Connected, name: str, body: bytes) -> None:
    sent = [Send(Message(SHARED, body), "s", "t")] * (name == NAMES[0])  # the other one does nothing
    client.tell(Begin("t", "b"), *sent, Prepare("t", f"xid {name}", receipt="p"))


def _prepare_batch(client: Connected, name: str, body: bytes) -> None:
    sent = Send(Message(SHARED, body), "s", "t")
    client.tell(Begin("t", "b"), sent, Prepare("t", f"xid {name}", None, f"owner{name}", 7, "p"))


def _prepare_part(client: Connected, name: str, body: bytes) -> None:
    sent = Send(Message(SHARED, body), "s", "t")
    client.tell(Begin("t", "b"), sent, PreparePart("t", f"span:other:{name}", receipt="p"))


def _prepare_whole(client: Connected, name: str, body: bytes) -> None:
    sent = Send(Message(SHARED, body), "s", "t")
    whole = Prepare("t", f"xid whole {name}", receipt="p", span=f"span:this:whole {name}", stores=("other",))
    client.tell(Begin("t", "b"), sent, whole)


def _decide(client: Connected, name: str, body: bytes) -> None:
    sent = Send(Message(SHARED, body), "s", "t")
    client.tell(Begin("t", "b"), sent, Decide("t", "c", f"outcome {name}", f"span:this:{name}", ("other",)))


def _ask_decision(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    client.tell(AskDecision(f"span:this:{name}", client.user, "a"))


def _end_part(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    client.tell(EndPart(f"span:other:{name}", client.user, True, "e"))


def _temporary(client: Connected, name: str) -> str:
    return f"temp-queue://{client.user}-{name}"  # an address for others: no two connections have one name


def _open(client: Connected, name: str, body: bytes) -> None:
    own, temporary, pull = client.own_name, _temporary(client, name), f"pull {name}"
    client.tell(
        OpenSession(1, "o"),
        InSession(1),
        OpenProducer(name, own, "p"),
        MakeTemporary(temporary, "m"),
        Subscribe(name, own, Mode(True), receipt="u"),
        Subscribe(pull, temporary, Mode(True), Flow(credit=0), receipt="u"),
        *(Send(Message(own, body + b" %d" % number)) for number in range(3)),
        Send(Message(temporary, body)),
        Credit(pull, 1, "c"),
    )


def _settle(client: Connected, name: str, body: bytes) -> None:
    first, second, third, *others = client.numbers(name, 5)
    own, again = client.own_name, body + b" again"
    client.tell(
        InSession(1),
        Begin("t", "b"),
        SendMany(Message(own, b""), [again], "t"),
        SendToMany(Message(own, again), (own, own + ".2"), "s", "t"),
        Settle(first, name, "s", "t"),
        SettleSet([second], name, "s", "t"),
        Abort("t", "a"),
        Settle(third, name, "s"),
        SendRun(Message(own, b""), [again, again], None),
        SettleRun(others, name),
        SettleAgain(third, name, "q"),
        SettleIfHeld(third, name, "h"),
        Extend(name, 1, "e"),
        Begin("t", "b"),
        Invalid(CommandError("as it came"), "i", "t"),
        Commit("t", "c"),
    )


def _leave(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    client.tell(
        InSession(1),
        Unsubscribe(name, "u"),
        Unsubscribe(f"pull {name}", "u"),
        RemoveTemporary(_temporary(client, name), "m"),
        CloseProducer(name, "p"),
        InSession(0),
        CloseSession(1, "s"),
        Disconnect("d"),
    )


def _lease(client: Connected, name: str, body: bytes) -> None:
    """Of the user's own queue, and then of the topic: both users have the same cursors there."""
    client.tell(
        Send(Message(client.own_name, body)), LeaseMessages((client.own_name,), name, 0, 5, receipt="l", take=True)
    )
    _read(client, name, client.own_name)
    client.tell(LeaseMessages((TOPIC_NAME,), name, 0, 5, receipt="l", take=True))
    _read(client, name, TOPIC_NAME)


def _read(client: Connected, name: str, source: str) -> None:
    client.world.settle()
    reading = LeaseReading(client.lease(), name)
    client.tell(Subscribe(f"read {source}", source, receipt="u", browse=Browse(reading=reading)))
    client.world.settle()


def _lease_shared(client: Connected, name: str, body: bytes) -> None:
    after = client.leases.get(name, 0)
    client.tell(Send(Message(SHARED_LEASES, body)))
    client.world.settle()
    client.tell(LeaseMessages((SHARED_LEASES,), name, after, 1, receipt="l"))
    reading = LeaseReading(client.learn_lease(name), name)
    client.tell(Subscribe("read", SHARED_LEASES, receipt="u", browse=Browse(reading=reading)))


def _ask(take: bool = False) -> Action:
    """Take a cursor of the queue that both users read, or use it in the epoch of its user."""

    def act(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
        epoch = 0 if take else client.epochs.get(name, 0)
        client.tell(LeaseMessages((QUEUE_SCHEME + EMPTY,), name, 0, 0, receipt="l", take=take, epoch=epoch))
        client.learn_epoch(name)

    return act


def _settle_leases(commit: bool) -> Action:
    return lambda client, name, _: client.tell(
        *(SettleLeases((source,), name, THROUGH, commit, "s") for source in (client.own_name, TOPIC_NAME))
    )


def _schedule(client: Connected, name: str, body: bytes) -> None:
    """Later, and ask for all that is scheduled to be cancelled, which neither user may."""
    client.tell(
        Send(Message(SHARED, body, {DELAY: "1000000"}, duplicate_id=f"later {name}"), "s"),
        Send(Message(MANAGEMENT, b"", {ACTION: "REMOVEALL"}), "s"),
        Send(Message(MANAGEMENT, b"", {ACTION: "REMOVE", JOB_ID: "1"}), "s"),
    )


def _does(*make: Callable[[str], Command]) -> Action:
    return lambda client, name, _: client.tell(*(each(name) for each in make))


ACTIONS: Mapping[str, Action] = {
    "subscribe": _does(lambda name: Subscribe("1", TOPIC_NAME, receipt="u", subscription_name=name)),
    "open": _open,
    "settle": _settle,
    "leave": _leave,
    "commit": _commit,
    "send": _send,
    "commit nothing": _does(lambda _: Begin("t", "b"), lambda name: Commit("t", "c", f"outcome {name}")),
    "ask": _does(lambda name: Commit("t", "c", f"outcome {name}")),
    "prepare a batch": _prepare_batch,
    "commit a batch": _does(lambda name: CommitBatch(f"owner{name}", 7, [f"xid {name}"], "c")),
    "abort some of a batch": _does(lambda name: AbortBatch(f"owner{name}", 7, [f"xid {name}"], "a")),
    "abort batches": _does(lambda name: AbortBatch(f"owner{name}", receipt="a")),
    "prepare": _prepare,
    "ask for a prepare": _does(lambda name: Prepare("t", f"xid {name}", receipt="p")),
    "prepare a part": _prepare_part,
    "prepare with parts in other stores": _prepare_whole,
    "decide": _decide,
    "ask for a decision": _ask_decision,
    "end a part": _end_part,
    "list": _does(lambda _: ListPrepared("l")),
    "end": _does(lambda name: Finish(f"xid {name}", True, "f")),
    "roll back": _does(lambda name: Finish(f"xid {name}", False, "f")),
    "forget": _does(lambda name: ForgetOutcome(f"xid {name}", "f")),
    "lease": _lease,
    "lease of a shared queue": _lease_shared,
    "take a cursor": _ask(take=True),
    "use a cursor": _ask(),
    "commit shared leases": _does(lambda name: SettleLeases((SHARED_LEASES,), name, THROUGH, True, "s")),
    "commit leases": _settle_leases(True),
    "return leases": _settle_leases(False),
    "browse": lambda client, name, _: client.tell(Subscribe(name, client.own_name, receipt="u", browse=Browse())),
    "schedule": _schedule,
    "unsubscribe": _does(lambda name: Unsubscribe("", "u", name)),
}
