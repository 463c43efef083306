"""One tree of errors: each has a code for machines and a description for people that tells the cure.

`fatal` says whether the connection on which it happened must be closed.
"""

from __future__ import annotations


class AmqError(Exception):
    """Base of every error that this package raises on purpose.

    `code` is stable and greppable (SCREAMING_SNAKE_CASE); the message says what is wrong and how to mend it.
    """

    code = "AMQ_ERROR"
    fatal = False

    def __init__(self, description: str, *, code: str | None = None) -> None:
        super().__init__(description)
        self.description = description
        if code is not None:
            self.code = code


class ConfigError(AmqError):
    """The configuration cannot be used; the broker does not start."""

    code = "CONFIG_INVALID"


class StoreError(AmqError):
    """The store cannot be used as it is: foreign, damaged, read-only, newer than this program."""

    code = "STORE_UNUSABLE"
    fatal = True


class CorruptError(StoreError):
    """Bytes in the store are damaged in a way that no crash explains. Names file and offset; never skipped.
    `cure` = what to do, where it is another thing than for a journal."""

    code = "STORE_CORRUPT"
    cure = ""

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(f"{path}: offset {offset}: {why}")
        self.path = path
        self.offset = offset
        self.why = why


class NewerFormatError(StoreError):
    """A file of the store was written by a newer version of amq: upgrade this broker, nothing was changed."""

    code = "STORE_NEWER_FORMAT"


class OwnershipLostError(AmqError):
    """This broker is not (or may no longer be) the master of its store: it must not confirm anything."""

    code = "OWNERSHIP_LOST"
    fatal = True


class StoreFullError(AmqError):
    """No room for new messages; acknowledgements still go through."""

    code = "STORE_FULL"


class TransportError(AmqError):
    """A transport cannot be opened: its port is taken, or its address does not belong to this host."""

    code = "TRANSPORT_UNAVAILABLE"


class ProtocolError(AmqError):
    """The peer broke the protocol: the broker answers with the reason and closes the connection."""

    code = "PROTOCOL_ERROR"
    fatal = True


class AccessError(AmqError):
    """Login refused, or an operation that this user may not do."""

    code = "ACCESS_REFUSED"
    fatal = True


class CommandError(AmqError):
    """A well-formed command that cannot be carried out (unknown subscription, unknown transaction, …)."""

    code = "COMMAND_REFUSED"
    fatal = True


class TransactionRolledBackError(AmqError):
    """The transaction did not take place: nothing of it was stored. Safe to run again."""

    code = "TRANSACTION_ROLLED_BACK"


class SelectorError(AmqError):
    """A selector that cannot be used. The description shows it with a caret at the column of the mistake.

    `column` counts from 1; 0 = the selector as a whole.
    """

    code = "INVALID_SELECTOR"

    def __init__(self, description: str, *, column: int = 0, code: str | None = None) -> None:
        super().__init__(description, code=code)
        self.column = column
