"""Bodies that swell, or are a large map: a thread makes them ready for clients of another protocol, in order, and the
memory that they take is counted."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest

from amq.core import message as messages
from amq.core.message import LARGE_BODY_BYTES, LOOP_BYTES_MAX, THREAD_BYTES_MAX, CostlyError, Message, neutral, plain
from amq.management.messages import AS_IT_CAME, BODY_BYTES_SHOWN, FoundMessage, row_of
from amq.protocols.commands import Send
from amq.protocols.openwire import messages as openwire
from amq.protocols.openwire import table
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import structure
from amq.protocols.openwire.wire import INT
from tests.broker.world import World
from tests.transports.served import CONNECT, Peer, Served, frame, serve

PRODUCER = structure(table.PRODUCER_ID, connection="ID:host-1-1:1", session=1, value=1)
SWOLLEN = 3 << 20


def native(number: int, kind: int, content: bytes, destination: str = "queue://a", **fields: Any) -> Message:
    """As a client of OpenWire sends it."""
    id = structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=number)
    found = structure(
        kind,
        producer=PRODUCER,
        destination=structure(table.QUEUE, name="a"),
        id=id,
        persistent=True,
        priority=4,
        content=content,
        **fields,
    )
    return openwire.message_of(openwire.read_message(table.encode(found), 12), destination, "")


def compressed(number: int, size: int = SWOLLEN, destination: str = "queue://a") -> Message:
    body = INT.pack(size) + zlib.compress(b"%04d" % number + bytes(size - 4))
    return native(number, table.BYTES_MESSAGE, body, destination, compressed=True)


def subscribe(destination: str = "/queue/a", ack: str = "auto", id: int = 1, **headers: object) -> bytes:
    return frame("SUBSCRIBE", {"id": id, "destination": destination, "ack": ack, **headers})


def send(served: Served, *sent: Message) -> None:
    client = served.world.connect()
    for message in sent:
        client.do(Send(message))


def bodies(peer: Peer) -> list[tuple[int, int]]:
    """(number, size) of each body that has come whole."""
    found, data = [], peer.said
    while (at := data.find(b"content-length:")) >= 0:
        start = data.index(b"\n\n", at) + 2
        size = int(data[at + 15 : data.index(b"\n", at)])
        if len(data) < start + size:
            break
        found.append((int(data[start : start + 4]), size))
        data = data[start + size :]
    return found


async def reads(served: Served, peer: Peer, count: int) -> list[tuple[int, int]]:
    await served.until(lambda: [peer.read(), len(bodies(peer)) >= count][1], f"{count} bodies")
    await served.rest()
    return bodies(peer)


def never_on_the_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that were inflated in the thread; more than LOOP_BYTES_MAX on the loop is an error."""
    real, runner, threaded = openwire.inflated, served.world.runner, list[int]()
    inside = [False]
    submit = runner.submit

    def submitting(job: Any, done: Any) -> None:
        def job_in_thread() -> Any:
            inside[0] = True
            try:
                return job()
            finally:
                inside[0] = False

        submit(job_in_thread, done)

    def inflating(data: bytes, bytes_max: int) -> bytes:
        assert inside[0] or bytes_max <= LOOP_BYTES_MAX
        found = real(data, bytes_max)
        if inside[0]:
            threaded.append(len(found))
        return found

    monkeypatch.setattr(runner, "submit", submitting)
    monkeypatch.setattr(openwire, "inflated", inflating)
    return threaded


@pytest.mark.parametrize("ack", ["auto", "client-individual"])
def test_a_body_that_swells_is_inflated_in_a_thread_and_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    async def test(served: Served) -> None:
        threaded = never_on_the_loop(served, monkeypatch)
        sent = [compressed(0, 100), compressed(1), compressed(2, 100), compressed(3), compressed(4, LOOP_BYTES_MAX)]
        send(served, *sent)
        await served.rest()
        peer = await served.connect(CONNECT, subscribe(ack=ack))
        assert await reads(served, peer, 5) == [
            (0, 100),
            (1, SWOLLEN),
            (2, 100),
            (3, SWOLLEN),
            (4, LOOP_BYTES_MAX),
        ]
        assert threaded.count(SWOLLEN) == 2
        assert served.hub.translator.held_bytes == 0
        await served.hang_up(peer)
        if ack != "auto":
            again = await served.connect(CONNECT, subscribe())
            assert len(await reads(served, again, 5)) == 5
        await served.rest()
        assert served.world.broker.memory.taken_bytes == 0

    serve(tmp_path, test)


def test_browsers_that_do_not_read_hold_what_is_counted(tmp_path: Path) -> None:
    """The memory of each is counted, and where there is no room the next ones wait."""
    size = 8 << 20

    async def test(served: Served) -> None:
        memory, translator = served.world.broker.memory, served.hub.translator
        send(served, compressed(1, size))
        await served.rest()
        before = memory.taken_bytes
        peers = [await served.connect(CONNECT, subscribe(browser="true")) for _ in range(12)]
        await served.rest()
        held = translator.held_bytes
        assert size <= held == memory.taken_bytes - before
        assert held <= 3 * size, "as many as memoryLimit has room for"
        for number, peer in enumerate(peers):
            if number % 2:
                assert await reads(served, peer, 1) == [(1, size)]
            else:
                await served.hang_up(peer)
        assert translator.held_bytes == 0
        assert memory.taken_bytes == before

    serve(tmp_path, test, memory_limit_bytes=THREAD_BYTES_MAX + 2 * size)


def test_subscribers_of_a_topic_share_one_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        threaded = never_on_the_loop(served, monkeypatch)
        peers = [await served.connect(CONNECT, subscribe("/topic/t")) for _ in range(5)]
        send(served, compressed(1, destination="topic://t"), compressed(2, destination="topic://t"))
        for peer in peers:
            assert await reads(served, peer, 2) == [(1, SWOLLEN), (2, SWOLLEN)]
        assert threaded == [SWOLLEN, SWOLLEN]
        assert served.world.broker.memory.taken_bytes == 0

    serve(tmp_path, test)


def test_a_large_compressed_body_and_one_that_is_too_large(tmp_path: Path) -> None:
    """A body that would have more than the limit goes as it came."""
    bomb = zlib.compress(bytes(THREAD_BYTES_MAX + 1))

    async def test(served: Served) -> None:
        send(served, native(1, table.BYTES_MESSAGE, INT.pack(1) + bomb, compressed=True))
        await served.rest()
        peer = await served.connect(CONNECT, subscribe())
        await served.until(lambda: [peer.read(), bomb in peer.said][1], "the body as it came")
        await served.rest()
        assert served.world.broker.memory.taken_bytes == 0

    serve(tmp_path, test)


def test_a_consumer_that_ends_meanwhile_gets_nothing_and_its_connection_goes_on(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        send(served, compressed(1))
        await served.rest()
        peer = await served.connect(CONNECT)
        peer.write(subscribe(ack="client-individual") + frame("UNSUBSCRIBE", {"id": 1, "receipt": "u"}))
        await served.until(lambda: [peer.read(), b"receipt-id:u" in peer.said][1], "the receipt")
        await served.rest()
        assert bodies(peer) == []
        await served.say(peer, subscribe(id=2))
        assert await reads(served, peer, 1) == [(1, SWOLLEN)]
        assert served.world.broker.memory.taken_bytes == 0

    serve(tmp_path, test)


def test_a_large_map_becomes_json_in_a_thread(tmp_path: Path) -> None:
    content = encode_map({f"{number:x}": True for number in range(60_000)})
    assert LOOP_BYTES_MAX < len(content) < LARGE_BODY_BYTES
    message = native(1, table.MAP_MESSAGE, content)
    with pytest.raises(CostlyError):
        plain(message)
    with pytest.raises(CostlyError):
        neutral(message)

    async def test(served: Served) -> None:
        send(served, message)
        await served.rest()
        peer = await served.connect(CONNECT, subscribe())
        await served.until(lambda: [peer.read(), b'"ea5f": true' in peer.said][1], "the map")

    serve(tmp_path, test)


def test_inflating_makes_no_more_than_the_limit() -> None:
    assert messages.LOOP_BYTES_MAX == LOOP_BYTES_MAX
    for size in (LOOP_BYTES_MAX, LOOP_BYTES_MAX + 1, 64 * LOOP_BYTES_MAX):
        data = zlib.compress(bytes(size))
        if size <= LOOP_BYTES_MAX:
            assert len(openwire.inflated(data, LOOP_BYTES_MAX)) == size
        else:
            with pytest.raises(CostlyError):
                openwire.inflated(data, LOOP_BYTES_MAX)
    with pytest.raises(ValueError, match="cut off"):
        openwire.inflated(zlib.compress(b"abc" * 99)[:-9], LOOP_BYTES_MAX)


@pytest.mark.deep
def test_an_operators_list_shows_what_swells_as_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """25 messages that swell to 48 MiB took seconds to list."""
    world, made, real = World(tmp_path), [0], openwire.inflated

    def inflating(data: bytes, bytes_max: int) -> bytes:
        made[0] += bytes_max
        return real(data, bytes_max)

    monkeypatch.setattr(openwire, "inflated", inflating)
    swollen = [compressed(number, 48 << 20) for number in range(4)]
    rows = [row_of(world.broker, FoundMessage(message, 0)) for message in swollen for _ in range(2)]
    assert made[0] <= len(swollen) * LOOP_BYTES_MAX, "each was tried once"
    for row, message in zip(rows[::2], swollen, strict=True):
        assert row["remark"] == AS_IT_CAME
        assert row["bytes"] == len(message.body)
        assert base64.b64decode(row["body_base64"]) == message.body[:BODY_BYTES_SHOWN]
    whole = row_of(world.broker, FoundMessage(compressed(7, 100), 0))
    assert "remark" not in whole
    assert whole["bytes"] == 100
    world.close()
