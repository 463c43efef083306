"""Scale-down: stores leave the cluster with a node, once that has been away for a time.

A node says in its seat which stores go with it (`ScaleDown`), and, when it has stopped in good order, that it has. Each
other node watches: when the node has been away for long enough, it begins to remove these stores, one after the other
(`amq.cluster.removing`). All of them begin the same removal, and one is quicker. Nothing is copied by the node that
stops: the masters that took its stores over do that.

Invariants: a node acts only on one that it has seen running, so a cluster that starts again as a whole removes nothing;
no store is emptied into one that is to leave as well; the last store stays; a node that comes back in time keeps its
stores, and a removal that has begun goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from amq.core.errors import ConfigError

AFTER_S: Final = 60.0  # a node that is only restarted is back by then
AFTER_S_MAX: Final = 30 * 86_400.0
NAMES_MAX: Final = 64  # of stores: they are in the seat of the node


class ScaleDown(NamedTuple):
    """`stores` leave the cluster with the node, and `into`, () = all others, get what they hold: `after_s` after it has
    stopped in good order, and `after_failure_s`, None = never, after it ended in another way."""

    stores: tuple[str, ...]
    into: tuple[str, ...] = ()
    after_s: float = AFTER_S
    after_failure_s: float | None = None

    def check(self, stores: Iterable[str]) -> list[str]:
        """Raises ConfigError. Returns those of its own that are not among `stores`, which may have left before."""
        known = {*stores}
        if len(self.stores) + len(self.into) > NAMES_MAX:
            raise ConfigError(f"--scale-down and --scale-down-to: at most {NAMES_MAX} stores together")
        if both := sorted({*self.stores} & {*self.into}):
            raise ConfigError(f"--scale-down-to {both[0]}: that store is to leave as well: see --scale-down")
        if unknown := [name for name in self.into if name not in known]:
            raise ConfigError(
                f"--scale-down-to {unknown[0]}: the cluster has no such store; it has {', '.join(sorted(known))}",
                code="STORE_UNKNOWN",
            )
        return [name for name in self.stores if name not in known]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "stores": [*self.stores], "into": [*self.into]}

    @classmethod
    def from_json(cls, found: object) -> ScaleDown | None:
        """None = there is none, or it is of another version."""
        if not isinstance(found, dict):
            return None
        stores, into = _names(found.get("stores")), _names(found.get("into"))
        after_s, failure_s = found.get("after_s"), found.get("after_failure_s")
        if not stores or into is None or not _is_time(after_s) or not (failure_s is None or _is_time(failure_s)):
            return None
        assert isinstance(after_s, int | float)
        return cls(stores, into, after_s, failure_s)


class NodeSeen(NamedTuple):
    """A node, as its seat says; `has_stopped` = in good order, when it ran last."""

    name: str
    running: bool
    has_stopped: bool = False
    scale_down: ScaleDown | None = None


class ScalingDown(NamedTuple):
    """`store`, which `node` is not there for any more, is to give all that it has to the stores `into`."""

    node: str
    store: str
    into: tuple[str, ...]


class GoneNodes:
    """The nodes that are away, as one node sees them. `step` is called again and again."""

    def __init__(self) -> None:
        self._seen_running: set[str] = set()
        self._away_since: dict[str, float] = {}

    def meet(self, running: Iterable[str]) -> None:
        """These nodes run now, before the first `step`."""
        self._seen_running.update(running)

    def step(self, nodes: Iterable[NodeSeen], stores: Iterable[str], now_s: float) -> ScalingDown | None:
        """`nodes` and `stores` of the cluster, as they are at `now_s`, monotonic seconds. Returns what is to begin."""
        by_name = {node.name: node for node in nodes}
        running = {name for name, node in by_name.items() if node.running}
        self._seen_running = (self._seen_running & by_name.keys()) | running
        away = self._seen_running - running
        self._away_since = {name: self._away_since.get(name, now_s) for name in away}
        due = [by_name[name] for name in sorted(away) if self._is_due(by_name[name], now_s)]
        there = [*stores]
        going = {store for node in due if node.scale_down is not None for store in node.scale_down.stores}
        for node in due:
            assert node.scale_down is not None
            for store in node.scale_down.stores:
                into = tuple(each for each in node.scale_down.into or there if each in there and each not in going)
                if store in there and into:
                    return ScalingDown(node.name, store, into)
        return None

    def _is_due(self, node: NodeSeen, now_s: float) -> bool:
        rule = node.scale_down
        if rule is None:
            return False
        wait_s = rule.after_s if node.has_stopped else rule.after_failure_s
        return wait_s is not None and now_s >= self._away_since[node.name] + wait_s


def _names(found: object) -> tuple[str, ...] | None:
    if not isinstance(found, list) or len(found) > NAMES_MAX or not all(isinstance(each, str) for each in found):
        return None
    return tuple(found)


def _is_time(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= AFTER_S_MAX
