"""Two users give the same names: neither changes what the other is told, gets or keeps. See `two_users`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.world import World
from tests.security.two_users import NAMES, STEPS, TAKEOVER, USERS, Step, Witness, alone, play

steps = st.one_of(
    st.just(TAKEOVER),
    st.builds(
        lambda user, step, name: Step(user, *step, name),
        st.sampled_from(USERS), st.sampled_from(STEPS), st.sampled_from(NAMES),
    ),
)  # fmt: skip


def played(script: list[Step]) -> dict[str, Witness]:
    with TemporaryDirectory() as directory:
        world = World(Path(directory), outcome_window=2)
        try:
            return play(world, script)
        finally:
            world.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=10))
def test_neither_changes_what_the_other_sees(script: list[Step]) -> None:
    together = played(script)
    for user in USERS:
        assert together[user] == played(alone(script, user))[user]
