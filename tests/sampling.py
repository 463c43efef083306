"""Which of many parameters run in `make test`: a fixed sample. `make test-deep` runs the others, and not these again.
Where others still would show the same promise at a high price, `make test-thorough` runs them.

Invariant: each value runs in exactly one of the three. The sample depends on the order of the values alone, so that a
failure in it comes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

USUAL_EXAMPLES = 50


def examples(usual: int) -> int:
    """`max_examples` of a property that needs another number than the usual 50: the profile of the run makes it smaller
    or larger in the same ratio."""
    return max(1, usual * settings.default.max_examples // USUAL_EXAMPLES)


def sampled(values: Iterable[Any], every: int = 10) -> list[Any]:
    """`values` for `parametrize`: all but the first of each `every` are marked deep. A value that is a tuple stays one
    parameter, or becomes several, as `parametrize` itself has it."""
    return [value if number % every == 0 else _deep(value) for number, value in enumerate(values)]


def only(values: Iterable[Any], *quick: Any) -> list[Any]:
    """`values` for `parametrize`: all but `quick` are marked deep. Raises AssertionError where one of `quick` is no
    value."""
    values = list(values)
    assert all(value in values for value in quick), f"not among the parameters: {quick}"
    return [value if value in quick else _deep(value) for value in values]


def thorough(*values: Any) -> list[Any]:
    """`values` for `parametrize`, marked thorough."""
    return [_marked(value, pytest.mark.thorough) for value in values]


def _deep(value: Any) -> Any:
    return _marked(value, pytest.mark.deep)


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    values = value if type(value) is tuple else (value,)
    return pytest.param(*values, marks=mark)
