"""The node that should be the master of each store: rendezvous hashing within equal shares.

Each pair of a store and a node has a score, which depends on their names and on the node's weight alone. The pairs are
taken by falling score, and no node gets more stores than its share by weight. Plain rendezvous hashing would be
simpler, but six stores on three nodes then often stand 4, 2, 0. The stores of one node are shared in the same way among
the others for the case that it goes, and so on: a store's order of preference says who comes next.

Pure: every node computes the same from the same names and weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from hashlib import blake2b

__all__ = ["preferences", "priorities"]
_HASHES = 1 << 64


def preferences(stores: Iterable[str], weights: Mapping[str, float]) -> dict[str, list[str]]:
    """By store: the nodes from the most preferred one to the last one. A node of weight 0 is not among them."""
    return _order(sorted(stores), {node: weight for node, weight in weights.items() if weight > 0})


def priorities(stores: Iterable[str], weights: Mapping[str, float], node: str) -> dict[str, int]:
    """By store: the `priority` of its member at `node`, 0 where it should not be the master while others are there."""
    found = preferences(stores, weights)
    return {store: len(order) - order.index(node) if node in order else 0 for store, order in found.items()}


def _order(stores: list[str], weights: Mapping[str, float]) -> dict[str, list[str]]:
    if not weights or not stores:
        return {store: [] for store in stores}
    if len(stores) == 1:
        store = stores[0]
        return {store: sorted(weights, key=lambda node: (_score(store, node, weights[node]), node), reverse=True)}
    groups: dict[str, list[str]] = {}
    for store, node in _share_out(stores, weights).items():
        groups.setdefault(node, []).append(store)
    found: dict[str, list[str]] = {}
    for node, group in groups.items():
        others = {name: weight for name, weight in weights.items() if name != node}
        for store, rest in _order(sorted(group), others).items():
            found[store] = [node, *rest]
    return found


def _share_out(stores: list[str], weights: Mapping[str, float]) -> dict[str, str]:
    """By store: its node. No node gets more than its share."""
    left = _shares(stores, weights)
    pairs = sorted(
        ((_score(store, node, weight), store, node) for store in stores for node, weight in weights.items()),
        reverse=True,
    )
    found: dict[str, str] = {}
    for _, store, node in pairs:
        if store not in found and left[node]:
            found[store] = node
            left[node] -= 1
    return found


def _shares(stores: list[str], weights: Mapping[str, float]) -> dict[str, int]:
    """How many of `stores` each node gets: its share by weight, rounded down; what is then left over goes to those that
    lost most by that, and where that is equal, by score."""
    total = math.fsum(weights.values())
    exact = {node: len(stores) * weight / total for node, weight in weights.items()}
    found = {node: int(share) for node, share in exact.items()}
    lost = sorted(
        weights,
        key=lambda node: (round(exact[node] - found[node], 9), _score("\0".join(stores), node, weights[node])),
        reverse=True,
    )
    for node in lost[: len(stores) - sum(found.values())]:
        found[node] += 1
    return found


def _score(store: str, node: str, weight: float) -> float:
    """Highest for each node in proportion to its weight: -weight / ln(u), with u uniform in (0, 1)."""
    digest = blake2b(f"{store}\0{node}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / _HASHES
    return -weight / math.log(uniform) if uniform < 1 else math.inf
