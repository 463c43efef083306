"""The option table itself, and the two documents made from it."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from pathlib import Path

import pytest

from amq.config import BY_KEY, OPTIONS, SECTIONS, BrokerConfig, Option, ValueKind, checks, load, reference
from amq.config.destination_options import DestinationDefaults
from amq.config.node_options import NodeOptions
from amq.config.option import OptionScope
from amq.config.store_options import StoreOptions

ROOT = Path(__file__).parents[2]
NUMERIC = (ValueKind.DURATION, ValueKind.SIZE, ValueKind.INTEGER, ValueKind.DECIMAL)


def each_option(*kinds: ValueKind) -> pytest.MarkDecorator:
    chosen = [option for option in OPTIONS if not kinds or option.kind in kinds]
    return pytest.mark.parametrize("option", chosen, ids=lambda option: str(option.key))


def test_the_example_file_is_up_to_date(tmp_path: Path) -> None:
    written = (ROOT / reference.EXAMPLE_PATH).read_text(encoding="utf-8")
    assert written == reference.example_file(), "run: python -m amq.config.reference"
    reference.main(str(tmp_path))
    assert (tmp_path / "conf/amq.toml").read_text(encoding="utf-8") == written


def test_the_page_has_every_option_with_its_default() -> None:
    written = (ROOT / reference.PAGE_PATH).read_text(encoding="utf-8")
    page = reference.complete(written, reference.options_text())
    assert page.startswith(written.partition("## The options")[0].rpartition("<!--")[0])
    for option in OPTIONS:
        entry = page.partition(f"\n### {option.key}\n")[2].partition("\n### ")[0]
        assert option.help in entry
        default = option.format(option.parse(option.default))
        assert f"default `{default}`" in entry if default else "default blank" in entry
        assert option.variable in entry
    for section in SECTIONS:
        assert f"\n## [{section}]\n" in page


def test_a_page_without_a_place_for_the_options_is_found() -> None:
    with pytest.raises(AssertionError, match="has no place"):
        reference.complete("# Configuration\n", "options")


def test_the_example_says_the_defaults(tmp_path: Path) -> None:
    """As shipped it changes nothing; with every option uncommented it sets each to its default."""
    example = reference.example_file()
    assert tomllib.loads(example) == {section: {} for section in SECTIONS}
    path = tmp_path / "all.toml"
    keys = tuple(f"#{key} =" for key in BY_KEY)
    path.write_text(
        "\n".join(line.removeprefix("#") if line.startswith(keys) else line for line in example.split("\n"))
    )
    config = load(str(path), host_name="here")
    assert set(config.sources) == {option.attribute for option in OPTIONS}
    assert config == BrokerConfig(name="here", store="/mnt/shared/amq")


def test_defaults() -> None:
    """The promises of the design that a slip in the table would break."""
    config = BrokerConfig()
    assert (config.lock_acquire_sleep_interval_s, config.lock_keep_alive_period_s) == (1.0, 2.0)
    assert config.transports == ("stomp://127.0.0.1:61613",)
    assert (config.journal_segment_size_bytes, config.journal_batch_size_bytes) == (32 << 20, 4 << 20)
    assert (config.dead_letter_prefix, config.shared_dead_letter_queue) == ("DLQ.", "ActiveMQ.DLQ")
    assert (config.anonymous, config.users_file, config.stomp_default_persistent) == ("loopback", "", True)
    assert checks.contradictions(config) == []
    assert checks.doubts(config) == []


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BrokerConfig().prefetch_size = 1  # type: ignore[misc]


@each_option()
def test_every_option_is_described(option: Option) -> None:
    assert option.help.endswith(".")
    assert option.why.endswith(".")
    assert reference.help_text(option.key).startswith(option.help)
    assert set(option.elsewhere).isdisjoint(BY_KEY)
    assert option.parse(option.format(BrokerConfig().get(option))) == BrokerConfig().get(option)


@each_option(*NUMERIC)
def test_every_number_is_bounded(option: Option) -> None:
    assert option.minimum is not None
    assert option.maximum is not None
    scale = 1000 if option.kind is ValueKind.DURATION else 1
    for bound in (option.minimum, option.maximum):
        assert option.parse(bound) == option.parse(str(bound)) == bound / scale
    with pytest.raises(ValueError, match="too small"):
        option.parse(option.minimum - 1)
    with pytest.raises(ValueError, match="too large"):
        option.parse(option.maximum + 1)


@each_option()
def test_values_of_another_type_are_refused(option: Option) -> None:
    fraction = math.nan if option.kind is ValueKind.DECIMAL else 1.5
    values: tuple[object, ...] = (None, {}, fraction, b"", ["a", 1], 1 << 20_000)
    for raw in values:
        with pytest.raises(ValueError):
            option.parse(raw)


def test_one_name_elsewhere_means_one_option() -> None:
    names = [name for option in OPTIONS for name in option.elsewhere]
    assert len(names) == len(set(names))


def test_options_that_may_contradict_change_together() -> None:
    """Else a live change of one could contradict the value in force of another that waits for a restart."""
    for small, large, _why in checks._AT_MOST:
        assert BY_KEY[small].reload == BY_KEY[large].reload
    assert BY_KEY["anonymous"].reload
    assert BY_KEY["usersFile"].reload


def test_each_scope_has_a_class_of_its_own() -> None:
    """Scope and class are the same statement, so the type of a parameter says whose options a module reads."""
    own = {OptionScope.NODE: NodeOptions, OptionScope.STORE: StoreOptions, OptionScope.DESTINATION: DestinationDefaults}
    inherited = {field.name for field in dataclasses.fields(DestinationDefaults)}
    for scope, kind in own.items():
        names = {field.name for field in dataclasses.fields(kind) if "option" in field.metadata}
        expected = {option.attribute for option in OPTIONS if option.scope is scope}
        assert names - (inherited if scope is OptionScope.STORE else set()) == expected
    assert all(option.reload for option in OPTIONS if option.destination), "a queue's options change as a whole"


def test_what_safety_rests_on_never_changes_live() -> None:
    assert not [option.key for option in OPTIONS if option.section in ("broker", "lock", "store") and option.reload]


def test_each_option_is_read_somewhere() -> None:
    files = (path for folder in ("amq", "cli") for path in (ROOT / folder).rglob("*.py"))
    code = "\n".join(path.read_text() for path in files if not path.name.endswith("_options.py"))
    unread = [option.key for option in OPTIONS if not re.search(rf"""[.'"]{option.attribute}\b""", code)]
    assert not unread, "no code obeys these options"
