"""A plugin of pytest: the clients of each `World` reach their broker through a link. See test_link_broker.py."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def through_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.broker import world
    from tests.link.piped import Piped

    monkeypatch.setattr(world, "ClientConnection", Piped)
