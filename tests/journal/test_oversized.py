"""A journal file of 20 GiB, which is sparse: every tool and the broker say that it is damaged, and read little."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from amq.core.errors import CorruptError
from amq.journal.segment import SEGMENT_BYTES_MAX, check_size
from amq.node.member import Role
from tests.cli.amq_process import amq
from tests.patience import DEADLINE_S
from tests.service_world import Services

SIZE = 20 << 30


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one message, whose newest segment was made longer."""

    async def main() -> None:
        world = Services(tmp_path)
        await world.leave_one_message()
        await world.stop()

    asyncio.run(main())
    newest = max((tmp_path / "store/journal").glob("*.seg"))
    os.truncate(newest, SIZE)
    return tmp_path / "store"


def test_the_largest_file() -> None:
    check_size("x", SEGMENT_BYTES_MAX)
    with pytest.raises(CorruptError, match=r"file is \d+ bytes long"):
        check_size("x", SEGMENT_BYTES_MAX + 1)


@pytest.mark.deep
@pytest.mark.parametrize("words", [("check",), ("dump",), ("stat",), ("export",)], ids=str)
def test_tools_name_the_damage(store: Path, words: tuple[str, ...]) -> None:
    done = amq("journal", *words, "--store", store)
    assert "STORE_CORRUPT" in done.stderr
    assert "internal error" not in done.stderr
    assert done.returncode != 0


@pytest.mark.deep
def test_repair_saves_what_is_there(store: Path) -> None:
    done = amq("journal", "repair", "--store", store, "--json")
    assert "internal error" not in done.stderr
    (damage,) = json.loads(done.stdout)["damages"]
    assert "bytes long" in damage["why"]


def test_a_broker_does_not_serve_it(store: Path) -> None:
    async def main() -> str:
        world = Services(store.parent)
        service, _ = await world.start("a")
        await asyncio.wait_for(service.wait_for(Role.STOPPED), DEADLINE_S)
        assert service.failure is not None
        return service.failure.code

    assert asyncio.run(main()) == "STORE_CORRUPT"
