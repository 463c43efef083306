"""The table of commands: each round trips in every version, and frames that ActiveMQ's own client sent are ours byte
for byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.protocols.openwire import table
from amq.protocols.openwire.table import (
    DEPTH_MAX,
    FIELDS,
    VERSION_MAX,
    Structure,
    Throwable,
    decode,
    encode,
    frame,
    structure,
)
from tests.sampling import examples, only

VERSIONS = (6, 9, 10, 11, 12)
texts = st.none() | st.text(max_size=12)
small = st.sampled_from(
    [
        table.QUEUE,
        table.TOPIC,
        table.TEMP_QUEUE,
        table.TEMP_TOPIC,
        table.CONNECTION_ID,
        table.SESSION_ID,
        table.CONSUMER_ID,
        table.PRODUCER_ID,
        table.BROKER_ID,
        table.XA_TRANSACTION_ID,
        table.MESSAGE_ID,
        table.LOCAL_TRANSACTION_ID,
    ]
)


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


@st.composite
def structures(draw: st.DrawFn, type: int, version: int = 12, depth: int = 0) -> Structure:
    """Any structure of that type, with all fields of that version."""
    inner = st.none() if depth > 1 else st.none() | small.flatmap(lambda each: structures(each, version, depth + 1))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "s": texts,
        "b": st.booleans(),
        "y": whole(8),
        "i": whole(32),
        "l": whole(64),
        "B": st.none() | st.binary(max_size=12),
        "o": inner,
        "a": st.none() | st.lists(inner, max_size=2),
        "T": st.none() | st.builds(Throwable, texts, texts),
    }
    return Structure(type, {name: draw(kinds[kind]) for name, kind, since in FIELDS[type] if since <= version})


@pytest.mark.parametrize("version", only(VERSIONS, VERSION_MAX))
@settings(max_examples=examples(15))
@given(data=st.data())
def test_every_type_round_trips(version: int, data: st.DataObject) -> None:
    for type in FIELDS:
        found = data.draw(structures(type, version))
        assert decode(encode(found, version), version) == found


def test_every_cut_is_refused() -> None:
    for type, fields in FIELDS.items():
        whole_one = encode(structure(type))
        for size in range(len(whole_one)):
            with pytest.raises(ValueError, match=r"."):
                decode(whole_one[:size])
        with pytest.raises(ValueError, match="1 bytes follow"):
            decode(whole_one + b"\0")
        assert decode(whole_one).fields.keys() == {name for name, _, _ in fields}


@given(
    st.binary(max_size=80)
    | st.sampled_from(sorted(FIELDS)).flatmap(
        lambda type: st.binary(max_size=120).map(lambda data: bytes((type,)) + data)
    ),
    st.sampled_from(VERSIONS),
)
def test_any_bytes(data: bytes, version: int) -> None:
    try:
        found = decode(data, version)
    except ValueError:
        return
    decode(encode(found, version), version)


def test_depth_is_bounded() -> None:
    """A connection's id of ids: transactions hold one, which may be a transaction in turn."""
    level = bytes((table.LOCAL_TRANSACTION_ID,)) + bytes(8) + b"\1"
    end = bytes((table.CONNECTION_ID,)) + b"\0"
    assert decode(level * DEPTH_MAX + end)
    for levels in (DEPTH_MAX + 1, 100_000):
        with pytest.raises(ValueError, match="nested more than"):
            decode(level * levels + end)


def test_an_unknown_type_is_refused() -> None:
    for type in set(range(256)) - FIELDS.keys():
        with pytest.raises(ValueError, match="are unknown"):
            decode(bytes((type,)) + bytes(100))


CONNECTION = "ID:vm-40867-1795448132993-1:1"


def test_a_recorded_response() -> None:
    recorded = bytes.fromhex("0000000a 1e 00000000 00 00000007")
    assert frame(structure(table.RESPONSE, correlation_id=7)) == recorded


def test_a_recorded_message() -> None:
    """What ActiveMQ's client 5.17 sends for its first text message."""
    written = CONNECTION.encode().hex()
    recorded = bytes.fromhex(
        f"000000d2 1c 00000007 01 017b01001d{written}00000000000000010000000000000001 01640100024631 00 00"
        f"016e00 017b01001d{written}00000000000000010000000000000001 0000000000000001 0000000000000000"
        "00 00 00000000 00 01 0000000000000000 04 00 000001a2090c5881 00 0100000006000000026d31" + 38 * "00"
    )
    producer = structure(table.PRODUCER_ID, connection=CONNECTION, value=1, session=1)
    found = structure(
        table.TEXT_MESSAGE,
        command_id=7,
        response_required=True,
        producer=producer,
        destination=structure(table.QUEUE, name="F1"),
        id=structure(table.MESSAGE_ID, producer=producer, producer_sequence=1),
        persistent=True,
        priority=4,
        timestamp=0x1A2090C5881,
        content=b"\0\0\0\2m1",
    )
    assert frame(found) == recorded
    assert encode(decode(recorded[4:])) == recorded[4:]


@pytest.mark.parametrize(
    ("type", "name", "since"),
    [
        (table.CONSUMER_INFO, "client_id", 10),
        (table.MESSAGE_ID, "text", 10),
        (table.MESSAGE_ACK, "cause", 7),
        (table.CONNECTION_INFO, "client_ip", 8),
        (table.CONNECTION_INFO, "failover_reconnect", 6),
        (table.CONSUMER_CONTROL, "destination", 6),
        (table.REMOVE_INFO, "last_delivered", 5),
        (table.SUBSCRIPTION_INFO, "no_local", 11),
        (table.TEXT_MESSAGE, "group_first", 10),
    ],
)
def test_fields_come_with_their_version(type: int, name: str, since: int) -> None:
    blank = structure(type)
    assert name not in decode(encode(blank, since - 1), since - 1).fields
    assert name in decode(encode(blank, since), since).fields
