"""Ownership: whose a name is that a client chooses.

Invariant: two clients that choose the same name meet only inside the scope that `NAMES` gives for it. Names that the
broker remembers after their connection has ended are stored with the name of their user before them, as `owned` writes
it, so that each user has a name space. docs/security.md has the table, docs/journal-format.md the stored form.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

SEPARATOR: Final = "\0"  # before and after the user. No name of a user has it, nor has a header of STOMP


class Within(Enum):
    """The part of the broker inside which a name means one thing."""

    CONNECTION = "connection"
    USER = "user"
    DESTINATION = "destination"
    CLIENT_ID = "client id"
    BROKER = "broker"
    RIGHT = "right"  # the permissions file says who may use the name


class Name(NamedTuple):
    """A kind of name. `fields` = the fields of commands that carry it; `scope` = inside which it means one thing."""

    what: str
    fields: tuple[str, ...]
    scope: tuple[Within, ...]


_TRANSACTION: Final = tuple(f"{command}.transaction" for command in ("Begin", "Send", "SendMany", "Settle", "Invalid"))
NAMES: Final = (
    Name("outcome id of a commit", ("Commit.outcome_id",), (Within.USER,)),
    Name(
        "duplicate id that a client gives",
        ("Send.message", "SendMany.like", "SendRun.like"),
        (Within.USER, Within.DESTINATION),
    ),
    Name("duplicate id that OpenWire forms", ("Send.message",), (Within.USER, Within.DESTINATION)),
    Name(
        "id of a prepared transaction",
        (
            "Prepare.xid",
            "Prepare.span",
            "Decide.xid",
            "AskDecision.xid",
            "EndPart.xid",
            "Finish.xid",
            "ForgetOutcome.xid",
            "CommitBatch.xids",
            "AbortBatch.xids",
        ),
        (Within.USER,),
    ),
    Name("client id, exclusive", ("Connect.client_id",), (Within.USER,)),
    Name("client id that several connections may have", ("Connect.client_id",), (Within.USER,)),
    Name("connection id, client object", ("Connect.instance",), (Within.USER,)),
    Name("reattachment token", ("Connect.reattach",), (Within.USER,)),
    Name(
        "durable subscription",
        ("Subscribe.subscription_name", "Unsubscribe.subscription_name"),
        (Within.USER, Within.CLIENT_ID),
    ),
    Name(
        "cursor of leases",
        ("LeaseMessages.cursor", "SettleLeases.cursor", "Subscribe.browse"),
        (Within.USER, Within.DESTINATION),
    ),
    Name("owner of batches", ("Prepare.owner", "CommitBatch.owner", "AbortBatch.owner"), (Within.RIGHT,)),
    Name("transaction that is open", _TRANSACTION, (Within.CONNECTION,)),
    Name(
        "session, consumer, producer",
        (
            "InSession.session",
            "OpenSession.session",
            "Subscribe.id",
            "Unsubscribe.id",
            "Credit.id",
            "Extend.id",
            "Settle.consumer",
            "SettleRun.consumer",
            "OpenProducer.id",
            "CloseProducer.id",
        ),
        (Within.CONNECTION,),
    ),
    Name("temporary destination", ("MakeTemporary.name",), (Within.CONNECTION,)),
)


def owned(user: str, name: str) -> str:
    """`name` in the name space of `user`. "" = the broker and its tools: their names have nothing before them."""
    return f"{SEPARATOR}{user}{SEPARATOR}{name}" if user else name


def is_owned(text: str) -> bool:
    """Is `text` in the name space of a user?"""
    return text.startswith(SEPARATOR)


def given(text: str) -> str:
    """The name as its client gave it."""
    if not text.startswith(SEPARATOR):
        return text
    _, separator, name = text[1:].partition(SEPARATOR)
    return name if separator else text


def owner_of(text: str) -> str:
    """The user in whose name space `text` is, "" = in nobody's: the broker's own, or stored by an earlier version."""
    if not text.startswith(SEPARATOR):
        return ""
    user, separator, _ = text[1:].partition(SEPARATOR)
    return user if separator else ""
