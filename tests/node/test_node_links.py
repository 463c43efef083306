"""A member that cannot take links, as it does not know the secret, leaves its store to others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from amq.config.schema import BrokerConfig
from amq.node import contender
from amq.node.member import Role
from amq.node.node import Node
from amq.store.open import open_store
from tests.patience import DEADLINE_S


def test_a_member_without_the_secret_does_not_become_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contender, "LISTEN_PATIENCE_S", 0.1)
    config = BrokerConfig(
        store=str(tmp_path / "store"),
        name="a",
        transports=("stomp://127.0.0.1:0",),
        management_socket="none",
        link_listen="tcp://127.0.0.1:0",
        link_secret_file=str(tmp_path / "missing"),
    )

    async def run() -> None:
        node = Node([config])
        await node.start()
        (member,) = node.members.values()
        assert await asyncio.wait_for(member.wait_for(Role.STOPPED), DEADLINE_S) is Role.STOPPED
        assert member.failure is not None
        assert "missing" in member.failure.description
        await node.ended()

    asyncio.run(run())
    assert open_store(config.store).epochs.newest() is None, "it has made an epoch for nothing"
