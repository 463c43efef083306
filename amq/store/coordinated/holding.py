"""An entry of a session, which names the process that holds it.

A session outlives a killed process by some seconds. Other processes of the same host see earlier that it is gone, and
remove its entry. Invariant: nothing of this is needed for safety.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from amq.core.errors import AmqError
from amq.store.coordinator import Coordinator, KeyEntry, Session
from amq.store.document import decode, encode, field
from amq.store.host import Host, provably_gone

KIND = "holder"


@dataclass(frozen=True, slots=True)
class _Process:
    """See `amq.store.host.Owner`."""

    host: str
    boot_id: str
    namespaces: str
    pid: int
    pid_start: int


class Holding:
    """An entry that this process holds, until `close`."""

    def __init__(self, coordinator: Coordinator, session: Session, key: str, revision: int) -> None:
        self._coordinator = coordinator
        self._session = session
        self._key = key
        self.revision = revision

    def is_there(self) -> bool:
        """Whether it is still the one of this process. Raises OSError."""
        found = self._coordinator.read(self._key)
        return found is not None and found.revision == self.revision

    @property
    def may_be_over(self) -> bool:
        """Whether the coordinator may have ended the session. Asks nobody."""
        return self._session.rest_s() <= 0

    def close(self) -> None:
        self._session.close()


def hold(
    coordinator: Coordinator, key: str, host: Host, found: KeyEntry | None, lasts_s: float = 0.0
) -> Holding | None:
    """Hold the entry `key`, which was seen as `found`, by a session that lasts so long; None where another process
    holds it. Raises OSError."""
    if found is not None and not (is_gone(found.value, host) and coordinator.remove(key, found.revision)):
        return None
    session = coordinator.open_session(lasts_s)
    try:
        revision = session.hold(key, process_document(host))
    except BaseException:
        session.close()
        raise
    if revision is None:
        session.close()
        return None
    return Holding(coordinator, session, key, revision)


def process_document(host: Host) -> bytes:
    """This process, so that others of its host can look whether it runs."""
    process = _Process(host.name(), host.boot_id(), host.namespaces(), host.pid(), host.pid_start())
    return encode(KIND, asdict(process))


def is_gone(data: bytes, host: Host) -> bool:
    """Whether the process of that document is known to be gone."""
    try:
        body: dict[str, Any] = decode(KIND, data, KIND)
        texts = [field(body, name, str, KIND) for name in ("host", "boot_id", "namespaces")]
        numbers = [field(body, name, int, KIND) for name in ("pid", "pid_start")]
    except AmqError:
        return False  # of another version: its session ends it
    return numbers[0] > 0 and provably_gone(_Process(*texts, *numbers), host)
