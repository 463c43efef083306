"""Any bytes for the neutral codec: it never raises, and how they are cut into reads changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from amq.core import values
from amq.core.destination import ANY_WORD, Pattern
from amq.core.message import Message
from amq.protocols.commands import Command, Disconnect, InSession, Malformed, Outcome, Send
from tests.neutral.client import NeutralClient
from tests.neutral.codec import NeutralCodec
from tests.neutral.wire import MAGIC, frame

_client = NeutralClient()
VALID = [
    _client.connect("me"),
    _client.step(b"response", "PLAIN"),
    _client.open(1),
    _client.close(2),
    _client.begin("t", session=1),
    _client.send("queue://a,*", b"body", session=2, properties={"n": values.Int16(3)}, priority=9, transaction="t"),
    _client.send(["queue://a", "topic://b"], b"", raw=b"\0\1"),
    _client.credit("c", 5, 1, drain=True),
    _client.subscribe("c", Pattern("queue://", ("a", ANY_WORD)), "queue://b", session=1, credit=3, acknowledges=True),
    _client.subscribe("d", "queue://b", browser=True, reading=[1, "cursor", 0]),
    _client.unsubscribe("c", 1, "s"),
    _client.settle(5, "c", Outcome.RELEASED, 1),
    _client.settle([5, 6], "c", Outcome.FAILED, 1, "t"),
    _client.settle(7, "c", Outcome.REJECTED, 2, first=3),
    _client.commit("t", 1, "o"),
    _client.abort("t"),
    _client.disconnect(),
]
VALID[0] = VALID[0].removeprefix(MAGIC)
some_value = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(max_size=20)
any_value = st.recursive(some_value, lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(), of, max_size=3))
any_frame = st.builds(
    lambda op, parts, session, number: frame(op, *parts, session=session, number=number),
    st.integers(0, 40),
    st.lists(any_value, max_size=6),
    st.integers(0, 65_535),
    st.integers(0, 2**32 - 1),
)
streams = st.lists(st.sampled_from(VALID) | any_frame | st.binary(max_size=30), max_size=8).map(b"".join)


def told(commands: list[Command]) -> list[tuple[int, str]]:
    """Each command with its session: where reads begin cannot be seen."""
    session, found = 0, []
    for command in commands:
        if isinstance(command, InSession):
            session = command.session
        else:
            found.append((session, _shown(command)))
    return found


def _shown(command: Command) -> str:
    fields: list[Any] = [type(command).__name__]
    for name in (name for kind in type(command).__mro__ for name in getattr(kind, "__slots__", ())):
        value = getattr(command, name)
        slots = Message.__slots__
        fields.append([getattr(value, slot) for slot in slots] if isinstance(value, Message) else str(value))
    return repr(fields)


@given(streams, st.lists(st.integers(0, 300)), st.booleans())
@example(b"".join(VALID), [1] * 500, False)
@example(b"".join(VALID), [], False)
def test_it_reads_the_same_however_it_is_cut(stream: bytes, cuts: list[int], broken_magic: bool) -> None:
    data = (b"" if broken_magic else MAGIC) + stream
    whole = NeutralCodec().receive(data)
    for command in whole[:-1]:
        assert not isinstance(command, Malformed | Disconnect), "something behind the last word"
    codec, pieces, rest = NeutralCodec(), [], data
    for cut in cuts:
        pieces += told(codec.receive(rest[:cut]))
        rest = rest[cut:]
    pieces += told(codec.receive(rest))
    assert pieces == told(whole)


def test_valid_frames_are_all_commands() -> None:
    found = NeutralCodec().receive(MAGIC + b"".join(VALID))
    assert len([each for each in found if not isinstance(each, InSession)]) == len(VALID)
    assert isinstance(found[-1], Disconnect)
    assert any(isinstance(each, Send) and each.message.destination == "queue://a,*" for each in found)
