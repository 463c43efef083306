"""Mutants: production code with one safety measure taken out.

A mutant is a function recompiled from its own source with one piece of text replaced; the text must be there exactly
once, so that a mutant cannot go stale unnoticed.
"""

from __future__ import annotations
import __future__

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """`what` in words. `path` leads to the function, `old` → `new` is the change. `seen_by` is the workload or check by
    which it must be seen."""

    what: str
    seen_by: str
    path: str
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The mutant in place of the function, also in modules that have imported it by name."""
        where, _, name = self.path.rpartition(".")
        owner = resolve_name(where)
        found = inspect.getattr_static(owner, name)
        with ExitStack() as patches:
            mutated = self._compiled(found, name)
            modules = [] if inspect.isclass(owner) else list(sys.modules.values())
            for place in (owner, *(each for each in modules if each is not owner and vars(each).get(name) is found)):
                patches.enter_context(mock.patch.object(place, name, mutated))
            yield

    def _compiled(self, found: Any, name: str) -> Any:
        function = found.fget if isinstance(found, property) else found
        source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
        assert source.count(self.old) == 1, f"{self.what}: {self.old!r} is no longer once in {name}: {source}"
        names: dict[str, Any] = {}
        code = compile(
            source.replace(self.old, self.new), f"<mutant: {self.what}>", "exec", __future__.annotations.compiler_flag
        )
        exec(code, function.__globals__, names)
        return property(names[name]) if isinstance(found, property) else names[name]


def mutants(table: str) -> tuple[Mutant, ...]:
    r"""Mutants as a table: a line `what [seen_by]`, and indented below it `path: old => new`, in one line or more. `\n`
    is a new line of the source and `\t` four spaces. A line that begins with # is a comment."""
    found = []
    for block in re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", table.strip())):
        head, _, change = block.partition("\n")
        what, _, seen_by = head.rstrip("]").rpartition(" [")
        change = re.sub(r"\n +", " ", change.strip()).replace(r"\n", "\n").replace(r"\t", "    ")
        path, _, rest = change.partition(": ")
        old, arrow, new = rest.partition(" =>")
        assert arrow, f"not a mutant: {block}"
        found.append(Mutant(what, seen_by, path, old, new.removeprefix(" ")))
    return tuple(found)
