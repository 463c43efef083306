"""The tests of sockets and of clients that come back, through a router."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.gateway.routed import RoutedServed, worlds_of
from tests.transports import (
    served,
    test_refused,
    test_translating,
    test_transports_bounds,
    test_transports_freed,
    test_transports_reattach,
)

pytestmark = pytest.mark.deep
MODULES: tuple[ModuleType, ...] = (
    test_refused,
    test_translating,
    test_transports_bounds,
    test_transports_freed,
    test_transports_reattach,
)
# They count what one broker has, and over three homes it is in several.
OF_ONE_STORE = {
    "test_thousands_of_lost_clients_are_bounded_in_number_and_bytes",
    "test_subscribers_of_a_topic_share_one_body",
    "test_many_subscriptions_and_queues_leave_nothing",
}

for _module in MODULES:
    for _name in dir(_module):
        if _name.startswith("test_"):
            globals()[_name] = getattr(_module, _name)


@pytest.fixture(autouse=True, params=[1, 3])
def routed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever serves clients in these tests is a gateway with so many homes."""
    if request.param > 1 and request.node.originalname in OF_ONE_STORE:
        pytest.skip("counts what one store has")
    monkeypatch.setattr(served, "World", worlds_of(request.param))
    monkeypatch.setattr(served, "KIND", RoutedServed)
