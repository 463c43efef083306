"""Fakes of this directory are importable by name; coroutines of it leave nothing in their loop."""

import asyncio
import pathlib
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.coroutines import coroutine_of
from tests.patience import DEADLINE_S

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    coroutine = coroutine_of(pyfuncitem)
    if coroutine is None:
        return None
    asyncio.run(_whole(coroutine), debug=True)
    return True


async def _whole(test: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await test
    assert not asyncio.all_tasks() - {asyncio.current_task()}
