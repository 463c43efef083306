"""Tests of transports and protocols run unchanged with a link between their clients and the broker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.link.linking import Linked
from tests.neutral import test_neutral_codec, test_neutral_login
from tests.transports import (
    served,
    test_refused,
    test_translating,
    test_transports_bounds,
    test_transports_freed,
    test_transports_reattach,
)

MODULES = (
    test_neutral_codec,
    test_neutral_login,
    test_refused,
    test_translating,
    test_transports_bounds,
    test_transports_freed,
    test_transports_reattach,
)
# It looks at the broker before a link has said that the clients are gone.
NOT_HERE = {"test_thousands_of_lost_clients_are_bounded_in_number_and_bytes"}


def cases() -> Iterator[Any]:
    for module in MODULES:
        for name, case in vars(module).items():
            if name.startswith("test_") and name not in NOT_HERE and inspect.isfunction(case):
                yield from of(module.__name__.rpartition(".")[2], case)


def of(module: str, case: Callable[..., None]) -> Iterator[Any]:
    """The case, once for each of its parameters, where it needs no fixture but a directory."""
    marks = [mark for mark in getattr(case, "pytestmark", []) if mark.name == "parametrize"]
    listed = marks[0].args[0] if marks else ()
    names = [name.strip() for name in (listed.split(",") if isinstance(listed, str) else listed)]
    if {*inspect.signature(case).parameters} != {"tmp_path", *names} or len(marks) > 1:
        return
    rows = marks[0].args[1] if marks else [()]
    for number, row in enumerate(rows):
        values = row.values if isinstance(row, type(pytest.param())) else row if len(names) != 1 else [row]
        given = dict(zip(names, values, strict=True))
        yield pytest.param(partial(case, **given), id=f"{module}.{case.__name__}.{number}")


@pytest.mark.deep
@pytest.mark.parametrize("case", [*cases()])
def test_over_a_link(case: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "KIND", Linked)
    case(tmp_path)
