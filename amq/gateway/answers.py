"""Answers on their way: the tokens that the homes of a connection get instead of those of its client.

Invariant: the client hears of a command once, and only when each home that has a part in it has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Final, cast

from amq.core.errors import TransactionRolledBackError
from amq.core.message import Message
from amq.protocols.commands import Command, Failure, Send, SendRun

TOKEN, BYTES, SENT, PLACE, SESSION, AGAIN = range(6)
OUTCOME: Final = AGAIN  # of a settlement
KEPT_BYTES: Final = 256  # of a message that is on its way, beside its body
_UNKNOWN: Final = "UNKNOWN_"  # codes of errors that say "not here" begin so


class Kept(tuple[Any, ...]):
    """The token of a frequent command, with all that is needed to repeat it. A tuple is made without a call of Python.

    Of a message in no transaction: TOKEN of the client, BYTES that it takes here, what was SENT (a message, or a run of
    them and the PLACE in it), its SESSION, and whether it was sent AGAIN already. Of the settlement of one delivery in
    no transaction SENT is the number of that in its store, PLACE the consumer, OUTCOME its outcome. Of other
    settlements SENT is None, and of a part of a transaction the name of that."""

    __slots__ = ()

    def command(self) -> Send:
        """The command, as its client gave it."""
        sent: Message | SendRun = self[SENT]
        if isinstance(sent, Message):
            return Send(sent, self[TOKEN])
        at = slice(self[PLACE], self[PLACE] + 1)
        alone = SendRun(sent.like, sent.bodies[at], [self[TOKEN]], None if sent.natives is None else sent.natives[at])
        return cast(Send, alone.one_by_one()[0])

    def settled(self) -> tuple[int, str]:
        """Of a settlement: the number of the delivery, and its consumer."""
        return self[SENT], self[PLACE]


class KeptRun(Sequence[Kept]):
    """The tokens of a run of messages, each of which has one. `tokens` = of the client.

    A home confirms a run as one nearly always. So the token of a message is made when somebody asks for it: to make one
    for each, and to look at it when the answer came, took a tenth of the gateway's time."""

    __slots__ = ("_again", "_each", "_sent", "_session", "bytes", "tokens")

    def __init__(self, tokens: Sequence[object], sent: SendRun, session: int, again: bool) -> None:
        self.tokens = tokens
        self.bytes = KEPT_BYTES * len(tokens) + sum(map(len, sent.bodies))
        self._sent = sent
        self._session = session
        self._again = again
        self._each: list[Kept] | None = None

    @property
    def each(self) -> list[Kept]:
        """Always the same ones."""
        found = self._each
        if found is None:
            sent, session, again = self._sent, self._session, self._again
            found = self._each = [
                Kept((token, KEPT_BYTES + len(body), sent, place, session, again))
                for place, (token, body) in enumerate(zip(self.tokens, sent.bodies, strict=True))
            ]
        return found

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self.each)

    def __getitem__(self, at: Any) -> Any:
        return self.each[at]


def first_outcome(outcomes: list[str]) -> str:
    return outcomes[0]


def all_lines(outcomes: list[str]) -> str:
    return "\n".join(filter(None, outcomes))


def in_all(outcomes: list[str]) -> str:
    return str(sum(map(int, outcomes)))


class Joined:
    """The token of a command in which several homes have a part, or of which something must be noted here.

    token, session  of the client's command; `is_asked` = the client waits for an answer
    waits           homes that have not answered
    outcome         makes one outcome of those of the homes
    is_question     the homes that do not know of it say so: it has succeeded where one home carried it out, and all
                    others did not know
    again           the command, for the other home that its destination may have now; None = it is not repeated
    command         the same as its client gave it, for the next master of a home that is lost; None = it is not
                    repeated there
    ended           is called before the client hears, with the error or None
    deals           is called with this before that: True = the client does not hear of it
    is_repeated     it may have been carried out before: that something is not known any more is success
    """

    __slots__ = (
        "again",
        "command",
        "deals",
        "ended",
        "failure",
        "is_asked",
        "is_question",
        "is_repeated",
        "outcome",
        "outcomes",
        "session",
        "token",
        "waits",
    )

    def __init__(
        self,
        token: object,
        session: int,
        waits: int = 1,
        *,
        outcome: Callable[[list[str]], str] = first_outcome,
        is_question: bool = False,
        again: Command | None = None,
        command: Command | None = None,
        ended: Callable[[Exception | None], None] | None = None,
        deals: Callable[[Joined], bool] | None = None,
    ) -> None:
        self.token = token
        self.session = session
        self.is_asked = token is not None
        self.waits = waits
        self.outcome = outcome
        self.is_question = is_question
        self.again = again
        self.command = command
        self.ended = ended
        self.deals = deals
        self.is_repeated = False
        self.outcomes: list[str] = []
        self.failure: Failure | None = None

    def confirmed(self, outcome: str) -> bool:
        """One home has carried it out. True: all have answered."""
        self.outcomes.append(outcome)
        self.waits -= 1
        return not self.waits

    def failed(self, failure: Failure) -> bool:
        """One home has not. True: all have answered. The first error counts; of a question, one that knows more."""
        if self.is_repeated and _is_unknown(failure):
            return self.confirmed("")
        before = self.failure
        if before is None or (self.is_question and _knowledge(before) < _knowledge(failure)):
            self.failure = failure
        self.waits -= 1
        return not self.waits

    @property
    def error(self) -> Failure | None:
        """The failure of all of it, None = it has succeeded."""
        failure = self.failure
        is_known = failure is not None and _knowledge(failure) > 1
        return None if self.is_question and self.outcomes and not is_known else failure


def _is_unknown(failure: Failure) -> bool:
    return str(getattr(failure.error, "code", "")).startswith(_UNKNOWN)


def _knowledge(failure: Failure) -> int:
    """How much a home knows that answers a question so: 0 = nothing, 1 = it would answer so knowing nothing, too."""
    return 0 if _is_unknown(failure) else 1 if isinstance(failure.error, TransactionRolledBackError) else 2


def asking(command: Any, receipt: object) -> Any:
    """A copy of `command` with another receipt."""
    other = copy(command)
    other.receipt = receipt
    return other
