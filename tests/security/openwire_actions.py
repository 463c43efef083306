"""What a user can do with names in OpenWire."""

from __future__ import annotations

from collections.abc import Mapping

from amq.protocols.codec import Codec
from amq.protocols.commands import Command
from amq.protocols.openwire import table
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.consumers import DELIVERED, INDIVIDUAL, STANDARD
from amq.protocols.openwire.table import Structure, frame, structure
from amq.protocols.openwire.transactions import BEGIN, COMMIT_ONE, COMMIT_TWO, FORGET, PREPARE, RECOVER, ROLLBACK
from tests.protocols.openwire.conversation import greeting, said
from tests.security.user_client import CLIENT_ID, QUEUE, TOPIC, Action, Connected

_MAKE, _REMOVE = 0, 1  # kinds of DestinationInfo


def connect(name: str, number: str) -> tuple[Codec | None, list[Command]]:  # noqa: ARG001
    server = OpenWireCodec()
    info = said(table.CONNECTION_INFO, 1, id=_connection(name), client_id=CLIENT_ID, fault_tolerant=True)
    return server, server.receive(greeting() + info)


# -- names -------------------------------------------------------------------------------------------------------------


def _connection(name: str) -> Structure:
    return structure(table.CONNECTION_ID, value=f"ID:host-{name}:1")


def _session(name: str) -> Structure:
    return structure(table.SESSION_ID, connection=f"ID:host-{name}:1", value=1)


def _producer(name: str) -> Structure:
    return structure(table.PRODUCER_ID, connection=f"ID:host-{name}:1", session=1, value=1)


def _consumer(name: str, number: int = 1) -> Structure:
    return structure(table.CONSUMER_ID, connection=f"ID:host-{name}:1", session=1, value=number)


def _message_id(name: str, number: int) -> Structure:
    return structure(table.MESSAGE_ID, producer=_producer(name), producer_sequence=1, broker_sequence=number)


def _transaction(name: str, number: int = 1) -> Structure:
    return structure(table.LOCAL_TRANSACTION_ID, connection=_connection(name), value=number)


def _xa(name: str) -> Structure:
    return structure(table.XA_TRANSACTION_ID, format=1, global_id=f"xid {name}".encode(), branch=b"b")


def _queue(name: str) -> Structure:
    return structure(table.QUEUE, name=name)


def _temporary(client: Connected, name: str) -> Structure:
    # It is an address for others: no two connections have one name.
    return structure(table.TEMP_QUEUE, name=f"{client.user}-{name}")


# -- actions -----------------------------------------------------------------------------------------------------------


def _message(name: str, body: bytes, sequence: int = 7, **more: object) -> bytes:
    fields = {
        "producer": _producer(name),
        "destination": _queue(QUEUE),
        "persistent": True,
        "content": body,
        "id": structure(table.MESSAGE_ID, producer=_producer(name), producer_sequence=sequence),
        "priority": 4,
        "command_id": 9,
        "response_required": True,
        **more,
    }
    return frame(Structure(table.BYTES_MESSAGE, fields), 12)


def _ends(name: str, kind: int, number: int = 1) -> bytes:
    transaction = _transaction(name, number)
    return said(table.TRANSACTION_INFO, 3, True, kind=kind, connection=_connection(name), transaction=transaction)


def _commits(name: str, *messages: bytes) -> tuple[bytes, ...]:
    return _ends(name, BEGIN), *messages, _ends(name, COMMIT_ONE)


def _xa_steps(*kinds: int) -> Action:
    def act(client: Connected, name: str, body: bytes) -> None:
        """A prepare has a message between begin and end."""
        steps = [
            said(
                table.TRANSACTION_INFO,
                2 + number,
                True,
                kind=kind,
                connection=_connection(name),
                transaction=_xa(name) if kind != RECOVER else None,
            )
            for number, kind in enumerate(kinds)
        ]
        sends = [_message(name, body, 40 + kinds[-1], transaction=_xa(name))] if BEGIN in kinds else []
        client.say(*steps[:1], *sends, *steps[1:])

    return act


def _subscription(name: str, number: int, destination: Structure, **more: object) -> bytes:
    return said(table.CONSUMER_INFO, 5, True, id=_consumer(name, number), destination=destination, **more)


def _open(client: Connected, name: str, body: bytes) -> None:
    own, temporary = _queue(client.own), _temporary(client, name)
    place = {"connection": _connection(name), "destination": temporary}
    client.say(
        said(table.SESSION_INFO, 2, True, id=_session(name)),
        said(table.PRODUCER_INFO, 3, True, id=_producer(name), destination=own),
        said(table.DESTINATION_INFO, 4, True, kind=_MAKE, **place),
        _subscription(name, 1, own, prefetch=10),
        _subscription(name, 2, temporary, prefetch=0),
        *(_message(name, body + b" %d" % each, 10 + each, destination=own, persistent=False) for each in range(6)),
        _message(name, body, 20, destination=temporary, persistent=False),
        said(table.MESSAGE_PULL, 6, consumer=_consumer(name, 2), destination=temporary),
    )


def _settle(client: Connected, name: str, body: bytes) -> None:
    first, second, third, fourth, *others = client.numbers(f"ID:host-{name}:1:1:1", 6)
    again = body + b" again"
    both, alike = _queue(f"{client.own},{client.own}.2"), {"response_required": False, "persistent": False}

    def ack(kind: int, begin: int, last: int, count: int = 1, asks: bool = True, **more: object) -> bytes:
        return said(
            table.MESSAGE_ACK,
            7,
            asks,
            consumer=_consumer(name),
            destination=_queue(client.own),
            kind=kind,
            first=_message_id(name, begin),
            last=_message_id(name, last),
            count=count,
            **more,
        )

    client.say(
        _ends(name, BEGIN, 2),
        ack(STANDARD, first, first, transaction=_transaction(name, 2)),
        _message(name, again, 30, destination=both, transaction=_transaction(name, 2), persistent=False),
        _ends(name, ROLLBACK, 2),
        _ends(name, BEGIN, 3),
        ack(STANDARD, first, first, transaction=_transaction(name, 3)),
        _ends(name, COMMIT_ONE, 3),
        ack(DELIVERED, second, second),
        ack(INDIVIDUAL, second, second),
        ack(INDIVIDUAL, second, second),
        ack(STANDARD, third, fourth, 2),
        _ends(name, BEGIN, 4),
        _message(name, again, 31, transaction=_transaction(name, 4), persistent=False),
        ack(STANDARD, 1 << 40, 1 << 40, transaction=_transaction(name, 4)),
        _ends(name, COMMIT_ONE, 4),
        b"".join(ack(INDIVIDUAL, each, each, asks=False) for each in others),
        _ends(name, BEGIN, 5),
        b"".join(_message(name, again, each, transaction=_transaction(name, 5), **alike) for each in range(32, 35)),
        _ends(name, COMMIT_ONE, 5),
    )


def _leave(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    place = {"connection": _connection(name), "destination": _temporary(client, name)}
    client.say(
        said(table.REMOVE_INFO, 2, True, id=_consumer(name)),
        said(table.REMOVE_INFO, 2, True, id=_consumer(name, 2)),
        said(table.DESTINATION_INFO, 3, True, kind=_REMOVE, **place),
        said(table.REMOVE_INFO, 4, True, id=_producer(name)),
        said(table.REMOVE_INFO, 5, True, id=_session(name)),
        said(table.REMOVE_INFO, 6, True, id=_connection(name)),
        said(table.SHUTDOWN_INFO, 7),
    )


def _subscribe(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    topic = structure(table.TOPIC, name=TOPIC)
    client.say(
        said(table.SESSION_INFO, 2, True, id=_session(name)),
        _subscription(name, 1, topic, prefetch=10, subscription_name=name),
    )


def _unsubscribe(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    fields = {"connection": _connection(name), "name": name, "client_id": CLIENT_ID}
    client.say(said(table.REMOVE_SUBSCRIPTION_INFO, 2, True, **fields))


ACTIONS: Mapping[str, Action] = {
    "subscribe": _subscribe,
    "open": _open,
    "settle": _settle,
    "leave": _leave,
    "commit": lambda client, name, body: client.say(
        *_commits(name, _message(name, body, transaction=_transaction(name)))
    ),
    "send": lambda client, name, body: client.say(_message(name, body)),
    "ask": lambda client, name, _: client.say(_commits(name)[-1]),
    "prepare": _xa_steps(BEGIN, PREPARE),
    "ask for a prepare": _xa_steps(PREPARE),
    "list": _xa_steps(RECOVER),
    "end": _xa_steps(COMMIT_TWO),
    "end at once": _xa_steps(BEGIN, COMMIT_ONE),
    "roll back": _xa_steps(ROLLBACK),
    "forget": _xa_steps(FORGET),
    "browse": lambda client, name, _: client.say(_subscription(name, 1, _queue(client.own), prefetch=10, browser=True)),
    "unsubscribe": _unsubscribe,
}
