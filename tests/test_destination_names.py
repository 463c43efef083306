"""Names of destinations: REST, commands, imports and protocols refuse the same ones, with the same code."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from urllib.parse import quote

import pytest

from amq.broker.names import check_made
from amq.core.destination import (
    NAME_BYTES_MAX,
    QUEUE_SCHEME,
    common,
    covers,
    flaw,
    matches,
    pattern_words,
    specificity,
)
from amq.core.errors import AmqError, CommandError, ProtocolError
from amq.maintenance.importing import _check_access
from amq.protocols.openwire.names import destinations
from amq.protocols.openwire.table import QUEUE, structure
from amq.protocols.stomp.destination import full_name as stomp_name
from tests.broker.world import World
from tests.management.managed import managed

BAD = {
    "wildcard": "eve.>",
    "star": "eve.*.x",
    "composite": "a,queue://b",
    "comma": "a,b",
    "escape": "a\x1b[2J",
    "newline": "a\nb",
    "NUL": "a\0b",
    "DEL": "a\x7f",
    "half a character": "a\ud800",
    "long": "x" * (NAME_BYTES_MAX + 1),
    "empty": "",
}
GOOD = ("orders", "orders.eu", "a b", "ünï.cödé", "a>b", "a*", "queue://b", "a/b", "a?x=1", "💥")
ELSEWHERE = ("wildcard", "star", "composite", "comma", "long")  # several for a protocol; STOMP bounds a header


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_bad_names_have_one_code(name: str) -> None:
    with pytest.raises(CommandError) as caught:
        check_made(QUEUE_SCHEME + name)
    assert caught.value.code == "DESTINATION_INVALID"


@pytest.mark.parametrize("kind", ["escape", "newline", "NUL", "DEL", "half a character"])
def test_an_import_refuses_control_characters(tmp_path: Path, kind: str) -> None:
    """It keeps names in which a comma, `*` or `>` stand for themselves."""
    with pytest.raises(AmqError) as refused:
        _check_access(World(tmp_path).broker, QUEUE_SCHEME + BAD[kind])
    assert refused.value.code == "DESTINATION_INVALID"


@pytest.mark.parametrize("kind", [kind for kind in BAD if kind not in ELSEWHERE])
def test_protocols_refuse_the_same(kind: str) -> None:
    name = BAD[kind]
    for make in (lambda: stomp_name("/queue/" + name, ""), lambda: destinations(structure(QUEUE, name=name))):
        with pytest.raises((CommandError, ProtocolError)) as caught:
            make()
        assert caught.value.code == "DESTINATION_INVALID"


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert flaw(QUEUE_SCHEME + name) == ""
    assert "," not in name


async def test_rest_makes_no_such_queue(tmp_path: Path) -> None:
    async with managed(tmp_path) as broker:
        await broker.fill("orders", 1)
        for kind, name in BAD.items():
            if kind == "half a character":  # no path and no JSON can carry it
                continue
            path = quote(name, safe="")
            for kind_of, method in (
                (f"/queues/{path}/messages", {"body": "x"}),
                (f"/topics/{path}/messages", {"body": "x"}),
                ("/queues/orders/move", {"to": name}),
                ("/queues/orders/copy", {"to": name}),
                ("/queues/orders/move", {"to": name, "dry_run": True}),
            ):
                with pytest.raises(AmqError) as caught:
                    await broker.through("POST", kind_of, method)
                no_path = kind in ("empty", "NUL", "long")  # REST knows no such path
                assert caught.value.code == "DESTINATION_INVALID" or no_path, (kind, kind_of)
        assert list(broker.broker.state.queues) == ["queue://orders"]
        for name in GOOD:
            await broker.through("POST", f"/queues/{quote(name, safe='')}/messages", {"body": "x"})
        assert len(broker.broker.state.queues) == len(GOOD)


def test_patterns_have_one_order_and_know_what_they_share() -> None:
    names = [tuple(words) for count in (1, 2, 3, 4) for words in product("abc", repeat=count)]
    shapes = [words for count in (1, 2, 3) for words in product("ab*>", repeat=count) if ">" not in words[:-1]]
    patterns = {
        pattern_words(".".join(words)): {name for name in names if matches(pattern_words(".".join(words)), name)}
        for words in shapes
    }
    for one, other in combinations(patterns, 2):
        shared = common(one, other)
        assert patterns[one] & patterns[other] == ({n for n in names if matches(shared, n)} if shared else set())
        assert not covers(one, other) or patterns[other] <= patterns[one]
        if patterns[one] & patterns[other]:
            assert specificity(one) != specificity(other)
        if shared and shared not in (one, other):
            assert specificity(shared) < min(specificity(one), specificity(other))
