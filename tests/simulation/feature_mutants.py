"""Holes made on purpose in features of the broker: each mutant is hunted in worlds that have that feature."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

from amq.broker import groups
from tests.simulation.mutants import Mutant

MUTANTS: dict[str, Mutant] = {}
FEATURES: dict[str, tuple[str, ...]] = {}


def mutant_of(*features: str) -> Callable[[Mutant], Mutant]:
    def keep(make: Mutant) -> Mutant:
        MUTANTS[make.__name__] = make
        FEATURES[make.__name__] = features
        return make

    return keep


# -- message groups ----------------------------------------------------------------------------------------------------


@mutant_of("groups")
def a_bucket_is_free_while_its_owner_holds_some_of_it() -> AbstractContextManager[object]:
    return patch.object(groups, "_holds", lambda *_: False)


@mutant_of("groups")
def groups_belong_to_nobody() -> AbstractContextManager[object]:
    return patch.object(groups.Groups, "is_owned", lambda *_: False)
