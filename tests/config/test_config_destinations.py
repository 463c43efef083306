"""Options of single destinations: patterns, which of them counts, errors, reload, and what `amq config show` tells."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.config.destination_options import DestinationOptions
from amq.config.loader import load
from amq.config.patterns import parse_pattern
from amq.config.policies import Policies
from amq.config.reload import Reload
from amq.config.schema import BrokerConfig
from amq.core.destination import matches
from amq.core.errors import ConfigError

FILE = """\
[queues]
queueLimit = "1GiB"

[destinations."orders.>"]
queueLimit = "2GiB"
maximumRedeliveries = 3

[destinations."orders.*.late"]
queueLimitPolicy = "drop-oldest"

[destinations.audit]
queueLimit = 0
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "amq.toml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "order", "ordersx", "a.orders"]),
        ("orders.>", ["orders", "orders.eu", "orders.eu.north"], ["ordersx", "a.orders.eu"]),
        ("orders.*", ["orders.eu"], ["orders", "orders.eu.north"]),
        ("*.eu", ["orders.eu", "a.eu"], ["eu", "orders.eu.north", "orders.us"]),
        ("*.eu.>", ["orders.eu", "a.eu.north"], ["eu", "orders.us"]),
        (">", ["orders", "orders.eu"], []),
        ("*", ["orders"], ["orders.eu"]),
    ],
)
def test_a_pattern_matches_whole_words(pattern: str, names: list[str], others: list[str]) -> None:
    for name in names + others:
        assert matches(parse_pattern(pattern), name.split(".")) is (name in names), name


def test_each_option_comes_from_the_most_specific_pattern_that_sets_it(path: str) -> None:
    policies = Policies(load(path))
    found = {
        name: (own.queue_limit_bytes >> 30, own.queue_limit_policy, own.maximum_redeliveries)
        for name in ("other", "orders", "orders.eu", "orders.eu.late", "audit")
        for own in (policies.of(name),)
    }
    assert found == {
        "other": (1, "block", 6),
        "orders": (2, "block", 3),
        "orders.eu": (2, "block", 3),
        "orders.eu.late": (2, "drop-oldest", 3),
        "audit": (0, "block", 6),
    }
    assert policies.of("orders") is policies.of("orders.eu")


@pytest.mark.parametrize("order", [1, -1])
def test_a_word_is_more_specific_than_a_star_and_that_than_the_rest(order: int) -> None:
    patterns = ["a.b", "a.b.>", "a.*", "a.*.>", "a.>", "*.b", "*.>", ">"]
    for i, most_specific in enumerate(patterns):
        tables = [DestinationOptions(each, {"prefetch_size": j}) for j, each in enumerate(patterns) if j >= i]
        config = BrokerConfig(destinations=tuple(tables[::order]))
        assert Policies(config).of("a.b").prefetch_size == i, most_specific


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[destinations."a..b"]\nqueueLimit = 1', ':1: [destinations."a..b"] has an empty word'),
        ('[destinations."queue://a"]\nqueueLimit = 1', ':1: [destinations."queue://a"] must be a bare name'),
        ('[destinations."a.>.b"]\nqueueLimit = 1', ':1: [destinations."a.>.b"] has a ">" before its end'),
        ('[destinations."a.b*"]\nqueueLimit = 1', ':1: [destinations."a.b*"] has the word "b*"'),
        ("[destinations.a.b]\nqueueLimit = 1", ':1: a name with dots needs quotes: write [destinations."a.b"]'),
        ("[destinations]\na = 1", ':2: [destinations."a"] must be a table'),
        ('[destinations."a.b"]\n\nqueueLimits = 1', ':3: [destinations."a.b"]: queueLimits: there is no such option'),
        ('[destinations."a.b"]\nqueueLimit = "x"', ':2: [destinations."a.b"]: queueLimit = "x" is not a size'),
        ('[destinations."a.b"]\nmemoryLimit = 1', ':2: [destinations."a.b"]: memoryLimit cannot be set for single'),
    ],
)
def test_an_error_names_line_pattern_option_and_cure(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "amq.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert caught.value.description.startswith(str(path) + complaint)


def test_they_change_while_the_broker_runs(path: str) -> None:
    reload = Reload(load(path), lambda: load(path))
    Path(path).write_text(FILE.replace("2GiB", "3GiB").replace("[destinations.audit]\nqueueLimit = 0", ""))
    outcome = reload.check()
    assert outcome is not None
    assert [str(change) for change in outcome.live] == [
        'destinations."orders.>".queueLimit: 2GiB → 3GiB',
        'destinations."audit".queueLimit: 0B → ',
    ]
    assert not outcome.restart
    assert Policies(reload.config).of("orders.eu").queue_limit_bytes == 3 << 30
    assert reload.check() is None


def test_config_show_tells_them(path: str) -> None:
    shown = CliRunner().invoke(main, ["config", "show", path]).output
    rows = [line.split() for line in shown.splitlines() if "destinations" in line]
    assert ['destinations."orders.>"', "queueLimit", "2GiB", f"{path}:5", "yes"] in rows
    as_toml = CliRunner().invoke(main, ["config", "show", path, "--toml"]).output
    assert tomllib.loads(as_toml)["destinations"] == {
        "orders.>": {"maximumRedeliveries": 3, "queueLimit": "2GiB"},
        "orders.*.late": {"queueLimitPolicy": "drop-oldest"},
        "audit": {"queueLimit": "0B"},
    }
    before = load(path)
    Path(path).write_text(as_toml)
    assert load(path) == before


def test_a_store_limit_leaves_room_to_work() -> None:
    with pytest.raises(ConfigError, match=r"storeLimit = 100MiB .* is less than 8 times journalSegmentSize = 32MiB"):
        load(overrides=["storeLimit=100MiB", "journalSegmentSize=32MiB"])
    assert load(overrides=["storeLimit=256MiB"]).store_limit_bytes == 256 << 20
