"""A plugin of pytest: the clients of each `World` reach their broker through a gateway. See test_gateway_suites.py."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def through_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.broker import world
    from tests.gateway.surrounded import Routed, stepped

    monkeypatch.setattr(world, "ClientConnection", Routed)
    monkeypatch.setattr(world.World, "turn", stepped(world.World.turn))
