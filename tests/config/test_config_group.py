"""Options that brokers of a group share: what is published and how two brokers differ."""

from __future__ import annotations

import json
from pathlib import Path

from amq.config import OPTIONS, load
from amq.config.group import OWN, PUBLISHED_BYTES_MAX, describe, differences, published, shared


def test_options_of_a_host_are_not_shared() -> None:
    link = ["linkListen=tcp://10.0.0.1:0", "linkSecretFile=/run/a/secret"]  # each node copies the secret for itself
    first = load(
        overrides=["name=a", "store=/x", "memoryLimit=2GiB", "logLevel=debug", "transports=stomp://h:1", *link]
    )
    assert shared(first) == shared(load(overrides=["name=b"]))
    assert set(shared(first)) == {made.key for made in OPTIONS} - OWN
    assert "lockKeepAlivePeriod" in shared(first)


def test_a_difference_names_option_and_both_values(tmp_path: Path) -> None:
    config = tmp_path / "amq.toml"
    config.write_text('[destinations."orders.>"]\nprefetchSize = 7\n')
    mine = published(load(overrides=["maximumRedeliveries=3"]))
    theirs = json.loads(json.dumps(published(load(str(config)))))
    found = differences(mine, theirs)
    assert found == {"maximumRedeliveries": ("3", "6"), 'destinations."orders.>".prefetchSize': ("", "7")}
    assert describe(found, "a", "b") == (
        'maximumRedeliveries is 3 on a and 6 on b; destinations."orders.>".prefetchSize is not set on a and 7 on b'
    )
    assert differences(mine, mine) == {}


def test_another_version_may_know_other_options() -> None:
    mine = published(load())
    other = {"digest": "of another version", "values": {**mine["values"], "invented": "1"}, "more": [1]}
    del other["values"]["prefetchSize"]
    assert differences(mine, other) == {}
    assert differences(mine, {}) == {}
    assert differences(mine, {"digest": 1, "values": 2}) == {}


def test_what_does_not_fit_is_a_digest(tmp_path: Path) -> None:
    config = tmp_path / "amq.toml"
    tables = "".join(f'[destinations."orders.{number}"]\nprefetchSize = 7\n' for number in range(500))
    config.write_text(tables)
    large = published(load(str(config)))
    assert large["values"] == {}
    assert len(json.dumps(large)) < PUBLISHED_BYTES_MAX
    assert list(differences(published(load()), large)) == [""]
    assert "too many to name" in describe(differences(published(load()), large), "a", "b")


def test_a_long_value_is_shortened_and_still_compared() -> None:
    long = "a." * 100
    one, two = (published(load(overrides=[f"virtualTopics={long}{end}"])) for end in "xy")
    assert len(one["values"]["virtualTopics"]) < 100
    assert list(differences(one, two)) == ["virtualTopics"]
