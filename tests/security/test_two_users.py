"""Two users give the same names: neither changes what the other sees, gets or keeps. See `two_users`."""

from __future__ import annotations

import inspect
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.message import Message
from amq.core.ownership import NAMES as KINDS
from amq.protocols import commands
from amq.protocols.commands import Command, MakeTemporary, RemoveTemporary, Send, Subscribe
from tests.broker.world import World
from tests.sampling import examples
from tests.security.two_users import ACTIONS, PUBLISH, STEPS, TAKEOVER, Hear, Step, Witness, alone, play
from tests.security.user_client import NAMES, USERS

steps = st.one_of(
    st.sampled_from([TAKEOVER, PUBLISH]),
    *[
        st.builds(
            lambda user, step, name: Step(user, *step, name),
            st.sampled_from(USERS),
            st.sampled_from(STEPS),
            st.sampled_from(NAMES),
        )
    ]
    * 5,
)
OPENWIRE_ONLY = {
    "OpenSession.session",
    "CloseSession.session",
    "InSession.session",
    "OpenProducer.id",
    "CloseProducer.id",
    "MakeTemporary.name",
    "RemoveTemporary.name",
    "ForgetOutcome.xid",
    "Extend.id",
    "Invalid.transaction",
    "SettleSet.consumer",
    "SettleSet.transaction",
    "SettleAgain.consumer",
}
STOMP_ONLY = {
    "LeaseMessages.cursor",
    "SettleLeases.cursor",
    "Subscribe.browse",
    "Prepare.owner",
    "CommitBatch.owner",
    "CommitBatch.xids",
    "AbortBatch.owner",
    "AbortBatch.xids",
    "Settle.transaction",  # OpenWire settles sets in transactions
}
# A question has no transaction, and test_transports_reattach.py shows tokens of others and guessed ones.
NOWHERE = {
    "SettleAgain.transaction",
    "SettleIfHeld.transaction",
    "PreparePart.owner",
    "PreparePart.span",  # a part has no parts
    "Connect.reattach",
}
OF_GATEWAYS = {
    "Prepare.span",
    "SettleIfHeld.consumer",
    "PreparePart.transaction",
    "PreparePart.xid",
    "Decide.outcome_id",
    "Decide.transaction",
    "Decide.xid",
    "AskDecision.xid",
    "EndPart.xid",
}
CANNOT = {
    "contract": NOWHERE,
    "stomp": NOWHERE | OF_GATEWAYS | OPENWIRE_ONLY,
    "openwire": NOWHERE | OF_GATEWAYS | STOMP_ONLY,
}


def played(script: list[Step], hear: Hear = lambda *_: None) -> dict[str, Witness]:
    with TemporaryDirectory() as directory:
        world = World(Path(directory), outcome_window=2)
        try:
            return play(world, script, hear)
        finally:
            world.close()


def check(script: list[Step], hear: Hear = lambda *_: None) -> None:
    together = played(script, hear)
    for user in USERS:
        assert together[user] == played(alone(script, user))[user]


@settings(max_examples=examples(25))
@given(st.lists(steps, min_size=3, max_size=10))
def test_neither_changes_what_the_other_sees(script: list[Step]) -> None:
    check(script)


@pytest.mark.deep
@settings(max_examples=examples(120))
@given(st.lists(steps, min_size=12, max_size=40))
def test_neither_changes_what_the_other_sees_at_length(script: list[Step]) -> None:
    check(script)


@pytest.mark.parametrize("scheme", ["temp-queue", "temp-topic"])
def test_a_temporary_destination_stays_with_the_user_who_made_it(tmp_path: Path, scheme: str) -> None:
    """It is an address, so its name is unique in the broker: the other user cannot make, read or remove it."""
    world, name = World(tmp_path), f"{scheme}://ID:host-1:1:1"
    alice = world.connect("c", user="alice", instance="ID:host-1:1")
    alice.do(MakeTemporary(name, "m"), Subscribe("1", name, receipt="u"))
    for command in (MakeTemporary(name, "m"), Subscribe("1", name, receipt="u")):
        other = world.connect("c", user="eve", instance="ID:host-1:1")
        other.do(command)
        world.settle()
        assert other.codes == ["DESTINATION_REFUSED"]
    eve = world.connect("c", user="eve", instance="ID:host-1:1")
    eve.do(RemoveTemporary(name, "r"), Send(Message(name, b"reply"), "s"))
    world.settle()
    assert (eve.codes, alice.codes, alice.bodies) == ([], [], [b"reply"])
    world.close()


def everything(protocol: str, name: str) -> list[Step]:
    """Each action of a protocol, by eve first and then by alice, twice: so each of them comes upon what the other has
    done."""
    script: list[Step] = []
    for action in ACTIONS[protocol]:
        script += [Step(user, protocol, action, name) for user in (*USERS[::-1], *USERS)]
        script += [PUBLISH] * (action == "subscribe")
    return script


def names_of(command: Command) -> set[str]:
    """The fields of `command` that carry a name, as `amq.core.ownership.NAMES` has them."""
    kind = command.__class__
    found = {f"{kind.__name__}.{field}" for field in fields_of(kind) if getattr(command, field)}
    if isinstance(command, Send) and not command.message.duplicate_id:
        found -= {"Send.message"}
    if isinstance(command, Subscribe) and (command.browse is None or command.browse.reading is None):
        found -= {"Subscribe.browse"}
    return found


def fields_of(kind: type[Command]) -> set[str]:
    named = {field for each in KINDS for field in each.fields}
    parts = [(cls.__name__, field) for cls in kind.__mro__ for field in cls.__dict__.get("__slots__", ())]
    return {field for cls, field in parts if f"{cls}.{field}" in named}


@pytest.mark.parametrize("protocol", ACTIONS)
def test_each_command_that_carries_a_name_has_a_step_in_each_protocol_that_has_it(protocol: str) -> None:
    heard: set[str] = set()
    for name in NAMES:  # each user has the right to the batches of one of them
        check(everything(protocol, name), lambda spoken, command: heard.update(names_of(command) if spoken else ()))
    kinds = [kind for _, kind in inspect.getmembers(commands, inspect.isclass) if issubclass(kind, Command)]
    wanted = {f"{kind.__name__}.{field}" for kind in kinds for field in fields_of(kind)}
    assert wanted - heard == CANNOT[protocol]
