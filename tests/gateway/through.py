"""A plugin of pytest: the clients of each `World` reach their broker through a gateway. See test_gateway_suites.py."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that differs through a gateway fails there: one that passes is to leave the table."""
    from tests.gateway.suites import reason_of

    for item in items:
        reason = reason_of(item.nodeid)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(autouse=True)
def through_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.gateway.surrounded import surround

    surround(monkeypatch)
