"""Which stores leave with a node, and when: the rule, and what one node sees of the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from amq.cluster.directory import Cluster, ClusterNode, StoreTable
from amq.cluster.moving import advance, scale_down
from amq.cluster.placement import Placement
from amq.cluster.scaling import NAMES_MAX, GoneNodes, NodeSeen, ScaleDown, ScalingDown
from amq.core.errors import ConfigError
from tests.cli.amq_process import amq

RULE = ScaleDown(("s3",), (), 60.0, None)
STORES = ("s1", "s2", "s3")


class Story:
    """What a node that watches sees of node `c`, at 0 s and later."""

    def __init__(self, rule: ScaleDown | None = RULE, is_seen: bool = True) -> None:
        self.rule = rule
        self._watch = GoneNodes()
        if is_seen:
            assert self.sees(0, running=True) is None

    def sees(
        self, now_s: float, *, running: bool = False, stopped: bool = False, others: Iterable[NodeSeen] = ()
    ) -> ScalingDown | None:
        nodes = [NodeSeen("c", running, stopped, self.rule), NodeSeen("a", True), *others]
        return self._watch.step(nodes, STORES, now_s)


def test_a_node_that_stopped_and_stays_away_leaves_its_store() -> None:
    story = Story()
    assert story.sees(1, stopped=True) is None
    assert story.sees(60, stopped=True) is None
    assert story.sees(61, stopped=True) == ScalingDown("c", "s3", ("s1", "s2"))


def test_a_node_that_stops_before_the_first_look_leaves_it() -> None:
    watch, away = GoneNodes(), [NodeSeen("a", True), NodeSeen("c", False, True, RULE)]
    watch.meet(["a", "c"])
    assert watch.step(away, STORES, 1) is None
    assert watch.step(away, STORES, 61) == ScalingDown("c", "s3", ("s1", "s2"))


def test_a_node_that_is_restarted_keeps_it() -> None:
    story = Story()
    assert story.sees(1, stopped=True) is None
    assert story.sees(59, running=True) is None
    assert story.sees(60, stopped=True) is None
    assert story.sees(119, stopped=True) is None
    assert story.sees(120, stopped=True) is not None


@pytest.mark.parametrize(("after_failure_s", "leaves"), [(None, False), (10.0, True)])
def test_a_node_that_was_killed_leaves_it_only_where_the_rule_says_so(
    after_failure_s: float | None, leaves: bool
) -> None:
    story = Story(RULE._replace(after_failure_s=after_failure_s))
    assert story.sees(1) is None
    assert story.sees(10.9) is None
    assert (story.sees(10_000) is not None) is leaves


def test_a_cluster_that_starts_again_as_a_whole_removes_nothing() -> None:
    story = Story(is_seen=False)
    assert story.sees(1, stopped=True) is None
    assert story.sees(10_000, stopped=True) is None


def test_a_node_without_a_rule_leaves_nothing() -> None:
    story = Story(None)
    assert story.sees(1, stopped=True) is None
    assert story.sees(10_000, stopped=True) is None


def test_a_node_that_was_forgotten_leaves_nothing() -> None:
    watch = GoneNodes()
    watch.step([NodeSeen("c", True, False, RULE)], STORES, 0)
    watch.step([NodeSeen("c", False, True, RULE)], STORES, 1)
    assert watch.step([], STORES, 100) is None
    assert watch.step([NodeSeen("c", False, True, RULE)], STORES, 200) is None
    assert watch.step([NodeSeen("c", False, True, RULE)], STORES, 300) is None


def test_two_nodes_that_go_do_not_get_the_stores_of_each_other() -> None:
    other = ScaleDown(("s2",), (), 60.0)
    story = Story()
    story.sees(0, running=True, others=[NodeSeen("b", True, False, other)])
    away = [NodeSeen("b", False, True, other)]
    assert story.sees(1, stopped=True, others=away) is None
    assert story.sees(61, stopped=True, others=away) == ScalingDown("b", "s2", ("s1",))


def test_the_last_store_stays() -> None:
    watch, rule = GoneNodes(), ScaleDown(("s1", "s2"), (), 0)
    watch.step([NodeSeen("c", True, False, rule)], ("s1", "s2"), 0)
    assert watch.step([NodeSeen("c", False, True, rule)], ("s1", "s2"), 1) is None


def test_only_the_group_gets_what_the_store_holds_and_nobody_where_it_is_gone() -> None:
    assert Story(RULE._replace(after_s=0, into=("s2",))).sees(1, stopped=True) == ScalingDown("c", "s3", ("s2",))
    assert Story(RULE._replace(after_s=0, into=("s9",))).sees(1, stopped=True) is None


def test_a_store_that_has_left_before_is_left_out() -> None:
    assert Story(RULE._replace(stores=("s9", "s3"), after_s=0)).sees(1, stopped=True) == ScalingDown(
        "c", "s3", ("s1", "s2")
    )


def test_names_of_nodes_that_come_and_go_are_not_kept() -> None:
    watch = GoneNodes()
    for number in range(1000):
        watch.step([NodeSeen(f"n{number}", True, False, RULE)], STORES, number)
    assert len(watch._seen_running) == 1
    assert len(watch._away_since) == 0


@pytest.mark.parametrize(
    "rule",
    [RULE, ScaleDown(("s3", "s2"), ("s1",), 0.0, 5.5)],
)
def test_a_rule_is_read_as_it_was_written(rule: ScaleDown) -> None:
    assert ScaleDown.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.parametrize(
    "change",
    [
        {"stores": []},
        {"stores": "s3"},
        {"stores": [3]},
        {"into": None},
        {"after_s": -1},
        {"after_s": True},
        {"after_s": "soon"},
        {"after_failure_s": "never"},
        {"stores": ["s"] * (NAMES_MAX + 1)},
    ],
)
def test_a_rule_of_another_version_is_none(change: dict[str, object]) -> None:
    assert ScaleDown.from_json(RULE.to_json() | change) is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (ScaleDown(("s3",), ("s3",)), "is to leave as well"),
        (ScaleDown(("s3",), ("s9",)), "no such store"),
        (ScaleDown(tuple(map(str, range(NAMES_MAX + 1)))), "at most"),
    ],
)
def test_a_rule_that_cannot_be_right_is_refused(rule: ScaleDown, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rule.check(STORES)


def test_stores_that_are_not_there_any_more_are_told() -> None:
    assert ScaleDown(("s3", "s4")).check(STORES) == ["s4"]


def test_the_seat_says_what_the_node_leaves_behind(tmp_path: Path) -> None:
    cluster = Cluster.create(str(tmp_path / "c"), dict.fromkeys(STORES, ""))
    cluster.join("c", 1.0, "host", 1, RULE).close()
    (found,) = cluster.nodes()
    assert (found.scale_down, found.has_stopped, found.running) == (RULE, False, False)
    shown = amq("cluster", "status", "--cluster", cluster.directory).stdout
    assert "s3 will go to the other stores when c is away for 1 min after a stop" in shown


def test_the_removal_begins_when_nothing_moves(tmp_path: Path) -> None:
    cluster = Cluster.create(str(tmp_path / "c"), dict.fromkeys(STORES, ""))
    watch, rule = GoneNodes(), RULE._replace(after_s=0)
    scale_down(cluster, watch, [ClusterNode("c", True, scale_down=rule)], 0)
    gone = [ClusterNode("c", False, scale_down=rule, has_stopped=True)]
    scale_down(cluster, watch, gone, 1)
    after = cluster.table()
    assert after.placement.leaving == "s3"
    scale_down(cluster, watch, gone, 2)
    assert cluster.table().number == after.number
    cluster.join("c", 1.0, "host", 1, rule).close()
    told = [amq("cluster", "status", "--cluster", cluster.directory).stdout]
    while cluster.table().placement.step is not None:
        advance(cluster)
    told.append(amq("cluster", "status", "--cluster", cluster.directory).stdout)
    assert ["s3 will go to" in each for each in told] == [True, False]


def test_two_nodes_begin_one_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.create(str(tmp_path / "c"), dict.fromkeys(STORES, ""))
    watch, rule, place = GoneNodes(), RULE._replace(after_s=0), Cluster.place

    def late_place(found: Cluster, placement: Placement) -> StoreTable:
        place(found, placement)  # the other node is quicker
        return place(found, placement)

    scale_down(cluster, watch, [ClusterNode("c", True, scale_down=rule)], 0)
    monkeypatch.setattr(Cluster, "place", late_place)
    scale_down(cluster, watch, [ClusterNode("c", False, scale_down=rule, has_stopped=True)], 1)
    assert (cluster.table().number, cluster.table().placement.leaving) == (2, "s3")


@pytest.mark.parametrize(
    "words",
    [
        ("--scale-down", "s1"),
        ("--cluster", "c", "--scale-down-to", "s1"),
        ("--cluster", "c", "--scale-down-after", "1"),
        ("--cluster", "c", "--scale-down-after-failure", "1"),
    ],
)
def test_options_that_go_together_are_asked_for(words: tuple[str, ...]) -> None:
    refused = amq("start", *words)
    assert refused.returncode == 2
    assert "--scale-down" in refused.stderr
    assert ", too" in refused.stderr
