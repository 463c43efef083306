"""Mutants: production code with one safety measure taken out.

A mutant is a function recompiled from its own source with one piece of text replaced; the text must be there exactly
once, so that a mutant cannot go stale unnoticed.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """`what` in words. `owner`.`name` is the function, `old` → `new` the change, `users` the modules that imported it
    by name. `seen_by` is the workload or check by which it must be seen."""

    what: str
    owner: Any
    name: str
    old: str
    new: str
    seen_by: str
    users: tuple[ModuleType, ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        mutated = self._compiled()
        places = [self.owner, *self.users]
        patches = [mock.patch.object(place, self.name, mutated) for place in places]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def _compiled(self) -> Any:
        found = inspect.getattr_static(self.owner, self.name)
        function = found.fget if isinstance(found, property) else found
        source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
        assert source.count(self.old) == 1, f"{self.what}: {self.old!r} is no longer once in {self.name}: {source}"
        names: dict[str, Any] = {}
        code = compile(
            source.replace(self.old, self.new), f"<mutant: {self.what}>", "exec", __future__.annotations.compiler_flag
        )
        exec(code, function.__globals__, names)
        return property(names[self.name]) if isinstance(found, property) else names[self.name]
