"""Placement: every name has one home in every table, names that belong together have one home, and what a table takes
away from a store no later one gives to another before all have seen it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amq.cluster.placement import ALL_SLOTS, SLOTS, SPREAD, Layout, Naming, Placement, crc32c, slot_of
from amq.core.destination import matches, pattern_words, specificity
from amq.core.errors import ConfigError

STORES = ["s1", "s2", "s3", "s4", "s5"]
words = st.sampled_from(["a", "b", "orders", "eu", "DLQ", "Consumer", "VirtualTopic", "x{t}", "{t}", "{}", "{"])
names = st.lists(words, min_size=1, max_size=6).map(".".join)
schemes = st.sampled_from(["queue://", "topic://"])
patterns = st.lists(
    st.sampled_from(["a", "b", "orders", "eu", "*", "{t}", "VirtualTopic"]), min_size=1, max_size=4
).map(".".join)
targets = st.sampled_from([*STORES, SPREAD])
namings = st.builds(
    Naming,
    virtual_topics=st.sampled_from(["VirtualTopic.>", "", ">", "*.eu", "VirtualTopic.*"]),
    virtual_topic_consumers=st.sampled_from(["Consumer.*.", "*.", "a."]),
    dead_letter_prefix=st.sampled_from(["DLQ.", "DLQ", "a.b."]),
)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Any table to which changes lead."""
    made = Placement.even(1, STORES[: draw(st.integers(1, 5))], draw(namings))
    for _ in range(draw(st.integers(0, 5))):
        rest = "" if not draw(st.integers(0, 4)) else draw(targets)
        pattern = draw(patterns) + (".>" if draw(st.booleans()) else "")
        try:
            made = made.placed(pattern, rest)
        except ConfigError:
            continue
        end = draw(st.integers(0, 4))
        if end:
            made = made.reverted() if end == 1 else made.settled()
    return made


@given(placements(), names, schemes)
def test_every_name_has_one_home_in_every_table(placement: Placement, name: str, scheme: str) -> None:
    home = placement.home_of(scheme + name)
    assert home in (*placement.stores, SPREAD)
    if placement.before is None:
        homes = [store for store in placement.stores if placement.is_home(store, scheme + name)]
        assert homes == (list(placement.stores) if home == SPREAD else [home])


@given(placements(), names, names)
def test_names_that_belong_together_have_one_home(placement: Placement, name: str, tag: str) -> None:
    naming = placement.naming
    assume(not placement.lives_everywhere(name))
    home = placement.home_of("queue://" + name)
    assert placement.home_of("topic://" + name) == home
    assert placement.home_of(f"queue://{naming.dead_letter_prefix}{name}") == home
    assert placement.key_of(placement.key_of(name)) == placement.key_of(name)
    tag = "".join(character for character in tag if character.isalpha()) or "t"  # "{}" is no tag
    if naming.virtual_topic_consumers == "Consumer.*.":  # else "zz" is a consumer, and cut off
        assert placement.home_of(f"queue://{{{tag}}}") == placement.home_of(f"topic://zz.{{{tag}}}.zz.{{other}}")


@given(placements(), st.sampled_from(["a", "b.c", "{t}", "x.{t}"]), names)
def test_a_queue_of_a_virtual_topic_lives_with_its_topic(placement: Placement, consumer: str, name: str) -> None:
    """However often the one is within the other."""
    placement = Placement.from_json(
        placement.number, placement.to_json() | {"naming": Placement.even(1, ["s"]).to_json()["naming"]}
    )
    topic = f"VirtualTopic.{name}"
    queue = f"Consumer.{consumer.replace('.', '-')}.{topic}"
    assert placement.home_of("topic://" + topic) == placement.home_of("queue://" + queue)
    assert placement.home_of("queue://DLQ." + queue) == placement.home_of("queue://" + queue)


@given(placements(), names, schemes)
def test_a_store_that_is_added_moves_nothing(placement: Placement, name: str, scheme: str) -> None:
    more = placement.with_store("s9")
    assert more.home_of(scheme + name) == placement.home_of(scheme + name)
    assert not more.layout.slots.count("s9")
    assert (more.number, more.since) == (placement.number + 1, placement.since)


@given(placements(), patterns, targets, names, schemes, st.booleans())
def test_no_two_tables_that_may_be_in_force_at_once_give_a_destination_to_two_stores(
    placement: Placement, pattern: str, target: str, name: str, scheme: str, goes_back: bool
) -> None:
    """The second table exists once all stores have the first, or it gives everything back."""
    assume(placement.before is None and target in (*placement.stores, SPREAD))
    try:
        moving = placement.placed(pattern, target)
    except ConfigError:
        return
    full = scheme + name

    def homes(table: Placement) -> set[str]:
        return {store for store in table.stores if table.is_home(store, full)}

    ended = moving.reverted() if goes_back else moving.settled()
    assert homes(moving) == homes(placement) & homes(moving.settled()) <= homes(ended)
    if goes_back:
        assert homes(ended) == homes(placement)
    assert ended.number == ended.since == moving.number + 1


@given(placements())
def test_it_is_the_same_after_it_was_stored(placement: Placement) -> None:
    text = json.dumps(placement.to_json(), sort_keys=True)
    assert Placement.from_json(placement.number, json.loads(text)) == placement


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda each: st.lists(each, max_size=3)))
def test_what_is_damaged_is_a_value_error(damaged: object) -> None:
    found = Placement.even(1, STORES).placed("a", "s1").to_json()
    for name in ("since", "order", "naming", "rules", "slots", "before"):
        with pytest.raises(ValueError, match="a placement"):
            Placement.from_json(2, found | {name: [[["x"]], damaged]})


def test_slots_are_shared_out_evenly_and_in_order() -> None:
    slots = Placement.even(1, STORES).layout.slots
    assert len(slots) == SLOTS
    assert set(Counter(slots).values()) <= {SLOTS // 5, SLOTS // 5 + 1}
    assert list(slots) == sorted(slots)


def test_the_slot_is_crc_32c_of_the_key() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert slot_of("orders") == crc32c(b"orders") % 1024
    counts = Counter(Placement.even(1, STORES).home_of(f"queue://orders.{number}") for number in range(5000))
    assert min(counts.values()) > 800


def test_the_most_specific_rule_decides() -> None:
    placement = Placement.even(1, STORES)
    for pattern, store in (("orders.>", "s1"), ("orders.*", "s2"), ("orders.eu", SPREAD), ("{t}", "s4")):
        placement = placement.placed(pattern, store).settled()
    found = [placement.where(f"queue://{name}") for name in ("orders.eu", "orders.us", "orders.us.x", "orders.{t}.x")]
    assert [(each.home, each.rule) for each in found] == [
        (SPREAD, "orders.eu"),
        ("s2", "orders.*"),
        ("s1", "orders.>"),
        ("s4", "{t}"),
    ]
    assert placement.where("topic://DLQ.orders.us").key == "orders.us"


@given(st.lists(st.tuples(patterns, st.booleans()), max_size=8), names)
def test_the_rule_is_that_of_the_most_specific_pattern_of_all(rules: list[tuple[str, bool]], name: str) -> None:
    texts = {pattern + (".>" if has_rest else "") for pattern, has_rest in rules}
    layout = Layout({text: f"s{number}" for number, text in enumerate(sorted(texts))})
    found = [text for text in texts if matches(pattern_words(text), name.split("."))]
    expected = min(found, key=lambda text: specificity(pattern_words(text)), default="")
    assert layout.rule_of(name) == (expected, layout.rules.get(expected, ""))


def test_a_temporary_destination_is_placed_by_its_own_name_and_by_no_rule() -> None:
    placement = Placement.even(1, STORES).placed(">", "s1").settled()
    name = "temp-queue://1-7.DLQ.{t}"
    assert placement.where(name).key == name
    assert len({placement.home_of(f"temp-topic://1-{number}.x") for number in range(100)}) == 5


def steps_of(placement: Placement) -> Iterator[Placement]:
    """The tables of a move, to its end."""
    half = frozenset(range(512))
    for slots in (frozenset[int](), half, ALL_SLOTS - half):
        placement = placement.stepped(slots) if slots else placement
        yield placement
    yield placement.stepped(frozenset()).settled()


def test_a_temporary_destination_stays_where_it_is_whatever_moves() -> None:
    """A reply on its way finds it there, by each table that a gateway may know."""
    names = [f"temp-queue://1-{number}.x" for number in range(200)]
    placement = Placement.even(1, STORES)
    homes = [placement.home_of(name) for name in names]
    placement = placement.with_store("s9")
    for change in (placement.shared_out(), placement.carried(">", "s9"), placement.placed(">", "s9")):
        for table in (change, *(steps_of(change) if change.step else [change.settled(), change.reverted()])):
            known = Placement.from_json(table.number, table.to_json())
            assert [known.home_of(name) for name in names] == homes
            assert all(known.is_home(home, name) for home, name in zip(homes, names, strict=True))
            assert not any(known.leaves(home, name) for home, name in zip(homes, names, strict=True))


def test_only_those_of_a_store_that_has_left_get_another_home() -> None:
    names = [f"temp-queue://1-{number}.x" for number in range(200)]
    placement = Placement.even(1, STORES)
    homes = [placement.home_of(name) for name in names]
    *before, left = steps_of(placement.emptied("s2", ["s1", "s4"]))
    for table in before:
        assert [table.home_of(name) for name in names] == homes
    after = [left.home_of(name) for name in names]
    assert "s2" in homes
    assert "s2" not in after
    assert all(now == home for now, home in zip(after, homes, strict=True) if home != "s2")
    assert Placement.from_json(left.number, left.to_json()) == left
    with pytest.raises(ValueError, match="temporary"):
        Placement.from_json(left.number, left.to_json() | {"temporary": ["s2"]})


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        ("DLQ.orders", "orders"),
        ("DLQ.>", ">"),
        ("Consumer.A.VirtualTopic.X", "VirtualTopic.X"),
        ("Consumer.*.VirtualTopic.>", "VirtualTopic.>"),
        ("a.{x}.b", "{x}"),
    ],
)
def test_a_rule_that_no_key_matches_names_the_one_that_works(pattern: str, instead: str) -> None:
    with pytest.raises(ConfigError, match="placement key") as caught:
        Placement.even(1, STORES).placed(pattern, "s1")
    assert caught.value.code == "RULE_WITHOUT_EFFECT"
    assert str(caught.value).endswith(f": place {instead}")


@pytest.mark.parametrize(
    ("pattern", "store", "why"),
    [
        ("ActiveMQ.DLQ", "s1", "lives in every store"),
        ("ActiveMQ.Advisory.>", "s1", "lives in every store"),
        ("a..b", "s1", "empty word"),
        (".".join("a" * 101), "s1", "more than 100 words"),
        ("a", "s7", "no store 's7'; it has s1, s2"),
        ("a", "", "no rule for 'a'; rules: none"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(pattern: str, store: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Placement.even(1, STORES).placed(pattern, store)


def test_rules_are_bounded() -> None:
    placement = Placement.even(1, STORES)
    for number in range(256):
        placement = placement.placed(f"a.{number}", "s1").settled()
    with pytest.raises(ConfigError, match="up to 256 rules"):
        placement.placed("b", "s1")


def test_a_long_name_is_placed_in_a_few_steps() -> None:
    """Names are as long as clients like, and the event loop places them."""
    placement = Placement.even(1, STORES, Naming(virtual_topics=">"))
    assert placement.key_of("DLQ.Consumer.A." * 546 + "x") == "x"
