"""Real servers of etcd and ZooKeeper, three of each, keep the contract of all coordinators, and lose one of them."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amq.store.coordinator import ABSENT, Coordinator, claim
from amq.store.open import open_coordinator
from tests.coordinator_contract import CHECKS, Coordinators
from tests.counted_takeover import CALLS_MAX, counted_takeover
from tests.ensemble import Ensemble, EtcdEnsemble, ZooKeeperEnsemble, ensemble, needs_etcd, needs_zookeeper, wait_until

KINDS = [
    pytest.param(EtcdEnsemble, marks=needs_etcd, id="etcd"),
    pytest.param(ZooKeeperEnsemble, marks=needs_zookeeper, id="zookeeper"),
]
PATIENT = ("requestTimeout=60000", "sessionTimeout=20000")  # a busy machine answers late
_keys = (f"key-{number}" for number in itertools.count())


@pytest.fixture(scope="module", params=KINDS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with ensemble(request.param, tmp_path_factory.mktemp("servers")) as found:
        wait_until(lambda: open_coordinator(found.url()).read("any") is None, "the servers have a leader")
        yield found


@pytest.fixture
def coordinators(servers: Ensemble) -> Iterator[Coordinators]:
    made: list[Coordinator] = []

    def new() -> Coordinator:
        made.append(open_coordinator.__wrapped__(servers.url(*PATIENT)))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.mark.deep
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(coordinators: Coordinators, check: Callable[[Coordinators, str], None]) -> None:
    check(coordinators, next(_keys))


@pytest.mark.deep
def test_a_session_can_be_longer_than_others(coordinators: Coordinators) -> None:
    one, key = coordinators(), next(_keys)
    session = one.open_session(1.5 * one.session_s)
    assert session.rest_s() > one.session_s
    assert session.hold(key, b"x") is not None
    session.close()
    assert one.read(key) is None


@pytest.mark.deep
async def test_a_takeover_waits_for_few_answers(coordinators: Coordinators, tmp_path: Path) -> None:
    calls = await counted_takeover(coordinators, tmp_path)
    assert len(calls) <= CALLS_MAX, calls


@pytest.mark.deep
def test_each_server_in_turn_stands_still_or_is_killed(servers: Ensemble, coordinators: Coordinators) -> None:
    """No change that was answered is lost, no number comes twice, and a session goes on."""
    one, key = coordinators(), next(_keys)
    session = one.open_session()
    assert session.hold(f"{key}-held", b"x") is not None
    last = one.compare_and_set(key, b"0", ABSENT)
    assert last is not None
    for number in servers.victims:
        servers.signal(number, signal.SIGSTOP)
        wait_until(lambda: one.read(key) is not None, "two of three go on")
        found = one.read(key)
        assert found is not None
        assert found.revision == last
        servers.kill(number)
        servers.start(number)
        wait_until(lambda: not any(why for _, why in one.servers()), "all three answer")
        last = claim(one, key, f"{number + 1}".encode())
        assert last > found.revision
    session.close()
    assert one.read(f"{key}-held") is None
