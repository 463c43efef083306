"""The copies of a replicated store as its master sees them: words for people, metrics and alarms.

The master tells them in the details of its presence. Invariant: nothing here is needed for safety, and what another
broker tells is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

SILENT_S: Final = 30.0  # a copy that counts and is silent, or behind, for longer than this is an alarm
_COPIES_MAX: Final = 32  # the master tells of at most this many, the worst first


class CopyState(Enum):
    """LEVEL    it has what the master had written a moment ago
    BEHIND   it answers, and lacks some of that
    FILLING  it does not count yet: it gets what it lacks
    SPARE    it does not count, for enough others do, and has everything: it comes in when one of them is lost
    SILENT   it does not answer
    GONE     it counted, does not answer, and was taken out of the group; the master forgets it after a while
    """

    LEVEL = "level"
    BEHIND = "behind"
    FILLING = "filling"
    SPARE = "spare"
    SILENT = "silent"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class CopyNow:
    """One copy.

    counts     it is one of the newest record
    lag_bytes  how much it lacks, None = that is not known
    behind_s   how long it has lacked something
    silent_s   how long it has not answered
    """

    id: str
    state: CopyState
    counts: bool
    lag_bytes: int | None
    behind_s: float
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CopiesNow:
    """All of them, the master's own, too. `blocked`: fewer answer than must have a write, so nothing is confirmed."""

    blocked: bool
    copies: tuple[CopyNow, ...]

    def to_json(self) -> dict[str, Any]:
        worst = sorted(self.copies, key=lambda each: (not each.counts, -each.silent_s, -each.behind_s, each.id))
        told = sorted(worst[:_COPIES_MAX], key=lambda each: each.id)
        return {
            "blocked": self.blocked,
            "copies": [asdict(each) | {"state": each.state.value} for each in told],
        }

    @classmethod
    def from_json(cls, told: object) -> CopiesNow | None:
        """None = there are none, or a broker of another version told them."""
        if not isinstance(told, Mapping) or not isinstance(told.get("copies"), list):
            return None
        copies = (_copy(each) for each in told["copies"][:_COPIES_MAX])
        return cls(told.get("blocked") is True, tuple(each for each in copies if each is not None))

    @property
    def silent(self) -> list[CopyNow]:
        """The copies that count and do not answer."""
        return [each for each in self.copies if each.counts and each.state is CopyState.SILENT]

    def alarms(self) -> list[tuple[str, str]]:
        """Code and text of what an operator should do something about."""
        found = []
        if self.blocked:
            names = ", ".join(each.id for each in self.silent)
            why = f"{names} do not answer" if names else "too few copies count yet"
            found.append(("STORE_BLOCKED", f"it confirms nothing, because {why}: start their brokers"))
        for each in self.silent:
            if each.silent_s > SILENT_S:
                text = f"its copy {each.id} has not answered for {each.silent_s:.0f} s: start that broker, or mend its"
                found.append(("COPY_SILENT", f"{text} network"))
        for each in self.copies:
            if each.counts and each.state is CopyState.BEHIND and each.behind_s > SILENT_S:
                text = f"its copy {each.id} has been behind for {each.behind_s:.0f} s: its disk may be full or slow"
                found.append(("COPY_BEHIND", f"{text}, and the log of its broker says why"))
        return found


def _copy(told: object) -> CopyNow | None:
    if not isinstance(told, Mapping):
        return None
    lag, behind_s, silent_s = (told.get(name) for name in ("lag_bytes", "behind_s", "silent_s"))
    try:
        state = CopyState(told.get("state"))
    except ValueError:
        return None
    if not isinstance(told.get("id"), str) or not isinstance(behind_s, int | float):
        return None
    silent_s = silent_s if isinstance(silent_s, int | float) else 0.0
    return CopyNow(
        told["id"], state, told.get("counts") is True, lag if isinstance(lag, int) else None, behind_s, silent_s
    )
