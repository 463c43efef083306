"""The ports of tests: no two processes of a run meet."""

from __future__ import annotations

from tests.ports import PORTS, free_port, share


def test_each_worker_has_a_share() -> None:
    shares = [share(f"gw{number}", 5) for number in range(5)]
    assert sorted(port for each in shares for port in each) == list(PORTS)


def test_a_port_is_named_once() -> None:
    found = [free_port() for _ in range(100)]
    assert len(set(found)) == 100
    assert set(found) <= set(PORTS)
