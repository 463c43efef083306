"""The tests of the neutral protocol, through a router."""

from __future__ import annotations

import pytest

from tests.gateway.routed import RoutedServed, worlds_of
from tests.neutral.test_neutral_codec import *  # noqa: F403 (the same tests)
from tests.transports import served


@pytest.fixture(autouse=True, params=[1, pytest.param(3, marks=pytest.mark.deep)])
def routed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever serves clients in these tests is a gateway with so many homes."""
    if request.param > 1 and request.node.originalname == "test_sessions_are_apart_and_end_apart":
        pytest.skip("its transactions have parts in two homes")
    monkeypatch.setattr(served, "World", worlds_of(request.param))
    monkeypatch.setattr(served, "KIND", RoutedServed)
