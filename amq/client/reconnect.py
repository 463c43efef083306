"""The choice of the next broker and of the wait before it. Pure: randomness is passed in, waits are returned.

An attempt is a round through the whole list: within a round the next broker follows at once (slaves do not listen and
refuse at once), between rounds one waits. The broker that just failed comes last, preferred ones come first.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from amq.client.members import Members
from amq.client.uri import BrokerUri
from amq.core.errors import AmqError

CAUSES_SHOWN_MAX = 10
CAUSE_CHARACTERS_MAX = 300


class Reconnector:
    """Order of brokers and length of waits for one connection."""

    def __init__(self, members: Members, rng: random.Random) -> None:
        self._members = members
        self._url = url = members.url
        self._random = rng
        self._delay_ms = float(url.options.initial_reconnect_delay_ms)
        self._round: list[BrokerUri] = []
        self._accepted_at: float | None = None
        self.rounds_failed = 0
        self._causes: dict[BrokerUri, str] = {}  # of the last failure of each broker since the last success

    def failed(self, uri: BrokerUri, error: AmqError) -> None:
        """Remember why `uri` could not be used, for `causes`."""
        self._causes[uri] = str(error)[:CAUSE_CHARACTERS_MAX]

    def causes(self) -> str:
        """The address of every broker with the cause of its last failure; "" = none failed since the last success."""
        if not self._causes:
            return ""
        uris = self._members.uris[:CAUSES_SHOWN_MAX]
        told = [_told(uri, self._causes.get(uri, "no answer yet")) for uri in uris]
        if len(self._members.uris) > len(told):
            told.append(f"and {len(self._members.uris) - len(told)} more")
        return "; ".join(told)

    @property
    def attempts_max(self) -> int:
        """Rounds after which the client gives up, as things are now; -1 = never."""
        options = self._url.options
        if self._accepted_at is None and options.startup_max_reconnect_attempts >= 0:
            return options.startup_max_reconnect_attempts
        return options.max_reconnect_attempts

    @property
    def limit(self) -> str:
        """When the client gives up, with the option that says so; "" = never."""
        return self._url.limit(self._accepted_at is None)

    @property
    def priority(self) -> list[BrokerUri]:
        """Brokers that priorityBackup prefers, in the order of the URL."""
        return [uri for uri in self._members.uris if uri.address in self._url.priority]

    def start_round(self, failed: BrokerUri | None = None, same_first: bool = False) -> None:
        """Begin a new round: `failed` last, or first where the link and not the broker was at fault."""
        uris = list(self._members.uris)
        if self._url.options.randomize:
            self._random.shuffle(uris)
        priority = self._url.priority
        uris.sort(key=lambda uri: uri.address not in priority)
        if failed is not None and failed in uris:
            uris.remove(failed)
            uris.insert(0 if same_first else len(uris), failed)
        self._round = uris

    def learned(self, before: Iterable[BrokerUri]) -> None:
        """The members were `before`: those that are new belong to this round, too; those that are gone do not."""
        self._round = [uri for uri in self._round if uri in self._members.uris]
        self._round += [uri for uri in self._members.uris if uri not in before]

    def next(self) -> BrokerUri | None:
        """The next broker of this round; None when all were tried."""
        return self._round.pop(0) if self._round else None

    @property
    def has_next(self) -> bool:
        return bool(self._round)

    def round_failed(self) -> float | None:
        """All brokers failed. Returns the wait in seconds before the next round, or None: give up."""
        self.rounds_failed += 1
        limit = self.attempts_max
        return None if 0 <= limit <= self.rounds_failed else self._wait_s()

    @property
    def must_warn(self) -> bool:
        every = self._url.options.warn_after_reconnect_attempts
        return every > 0 and self.rounds_failed > 0 and self.rounds_failed % every == 0

    def accepted(self, now: float) -> None:
        self._accepted_at = now
        self.rounds_failed = 0
        self._causes.clear()

    def lost(self, now: float) -> float | None:
        """The connection broke. Returns the wait in seconds before the first round, or None: no failover wanted.

        The waits start anew only if the connection lived longer than the wait that is due, so that a broker that
        accepts and drops at once is not hammered.
        """
        if self._url.options.max_reconnect_attempts == 0:
            return None
        assert self._accepted_at is not None, "a connection that was never accepted cannot be lost"
        if now - self._accepted_at >= self._delay_ms / 1000:
            self._delay_ms = float(self._url.options.initial_reconnect_delay_ms)
        return self._wait_s()

    def _wait_s(self) -> float:
        options = self._url.options
        wait_ms = min(self._delay_ms, options.max_reconnect_delay_ms)
        if options.use_exponential_back_off:
            grown = max(self._delay_ms, 1.0) * options.reconnect_delay_exponent
            self._delay_ms = min(grown, options.max_reconnect_delay_ms)
        if options.randomize:
            wait_ms *= self._random.uniform(0.5, 1.0)
        return wait_ms / 1000


def _told(uri: BrokerUri, cause: str) -> str:
    return cause if cause.startswith(str(uri)) else f"{uri}: {cause}"
