"""What tests write, in the notation that STOMP and OpenWire share, as a codec reads it: composite names, wildcards,
options as text, acknowledgements that cover what their consumer's mode says."""

from __future__ import annotations

from amq.core.destination import Pattern, Source, source
from amq.core.errors import AccessError
from amq.protocols.commands import OLDEST, Command, Credit, Outcome, Send, SendMany, SendToMany, Settle, Subscribe
from amq.protocols.stomp.subscribing import ACK_CLIENT, browse_of, filter_of, flow_of, mode_of


class Ack(Settle):
    """An acknowledgement: `Notation.commands` makes a `Settle` of it, which covers what the mode of its consumer
    says."""

    __slots__ = ()


class Nack(Ack):
    """The consumer refuses the delivery; with `requeue` it comes again."""

    __slots__ = ()

    def __init__(
        self, seq: int, consumer: str = "", receipt: object = None, transaction: str = "", requeue: bool = False
    ) -> None:
        super().__init__(seq, consumer, receipt, transaction, Outcome.FAILED if requeue else Outcome.REJECTED)


def sources(text: str) -> tuple[Source, ...]:
    """Those of `queue://a,topic://b.*`, each once, in order."""
    return tuple(dict.fromkeys(map(source, text.split(","))))


def _check_sent_to(names: tuple[Source, ...]) -> None:
    if any(isinstance(name, Pattern) for name in names):
        raise AccessError("send to one destination", code="DESTINATION_REFUSED")


class Notation:
    """Reads for one client: it knows the modes of its consumers."""

    def __init__(self) -> None:
        self._modes: dict[str, str] = {}

    def commands(self, commands: tuple[Command, ...]) -> list[Command]:
        """Raises AmqError."""
        read: list[Command] = []
        for command in commands:
            if isinstance(command, SendMany) and len(sources(command.like.destination)) > 1:
                read += [self._command(Send(each, None, command.transaction)) for each in command.messages]
            else:
                read.append(self._command(command))
        return read

    def _command(self, command: Command) -> Command:
        command.receipt = command.receipt or None
        if isinstance(command, Ack):
            first = OLDEST if self._modes.get(command.consumer) == ACK_CLIENT else None
            return Settle(command.seq, command.consumer, command.receipt, command.transaction, command.outcome, first)
        if isinstance(command, Credit):
            command.drain = command.drain or not command.credit
        if isinstance(command, SendMany):
            _check_sent_to(sources(command.like.destination))
        if type(command) is Send:
            names = sources(command.message.destination)
            _check_sent_to(names)
            if len(names) > 1:
                message = command.message
                return SendToMany(message, tuple(map(str, names)), command.receipt, command.transaction)
            command.message.destination = str(names[0])
        return command

    def subscribe(
        self,
        id: str,
        text: str,
        ack: str,
        prefetch: int,
        receipt: object = None,
        options: dict[str, str] | None = None,
        browser: bool = False,
        selector: str = "",
        subscription_name: str = "",
        token: object = None,
    ) -> Subscribe:
        """Raises AmqError."""
        named = sources(text)
        options = options or {}
        self._modes[id] = ack
        return Subscribe(
            id,
            named,
            mode_of(options, ack),
            flow_of(options, ack, named, prefetch, browser),
            filter_of(options, selector),
            receipt,
            token,
            subscription_name=subscription_name,
            browse=browse_of(options, named, browser),
        )
