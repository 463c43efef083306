"""Actions: all that a user may be allowed to do. `amq.broker.access` says which commands are which."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """The value completes "may not …"."""

    SEND = "send to"
    CONSUME = "consume"
    BROWSE = "browse"
    CREATE_TEMPORARY = "create the temporary destination"
    CREATE_DURABLE = "create a durable subscription to"
    DELETE_DURABLE = "delete the durable subscription"
    MANAGE_SCHEDULE = "manage scheduled messages by"
    PREPARE = "prepare the transaction"
    FINISH = "finish the prepared transaction"
    FINISH_OTHERS = "finish prepared transactions of others"
    DELETE = "delete"
    LIST_PREPARED = "list prepared transactions"
    PREPARE_BATCH = "prepare batches of the owner"
    FINISH_BATCH = "finish batches of the owner"
    LEASE = "lease messages of"
    VIEW = "see the figures of"
    ADMINISTER = "administer"
    MANAGE = "manage"
    READ_STORE = "read from the store messages of"
