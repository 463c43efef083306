"""Tests that are coroutines: each has an event loop to itself."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

import pytest


def coroutine_of(item: pytest.Function) -> Coroutine[Any, Any, None] | None:
    """What the loop runs; None for a test that needs no loop."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    made: Coroutine[Any, Any, None] = item.obj(**{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
    return made
