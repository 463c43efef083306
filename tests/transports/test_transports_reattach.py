"""A client whose socket breaks comes back on another one, and goes on where it was: each byte has one effect.

The client here is a byte counter: it knows what it said and what it has heard, and of frames only what it looks for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import amq.transports.socket as socket_module
from amq.core.errors import ProtocolError
from amq.protocols.stomp.reattaching import received
from amq.security.login import Claim, Login, User
from amq.transports.window import Window
from tests.sampling import examples
from tests.transports import served as harness
from tests.transports.served import Peer, Served, frame

HEADERS = {"accept-version": "1.2", "host": "x", "amq-reconnect-window": "60000", "amq-confirmation-window": "4096"}


class Returning:
    """A client that counts. `said` and `heard` are its streams, whatever sockets they went over."""

    def __init__(self, served: Served, **headers: str) -> None:
        self._served = served
        self._headers = {**HEADERS, **headers}
        self.said = self.heard = b""
        self.token = ""
        self.peer: Peer | None = None

    async def connect(self) -> None:
        hello = frame("CONNECT", dict(self._headers))
        self.said = hello
        self.peer = await self._served.connect(hello)
        self.heard = self.peer.read()
        found = re.search(rb"amq-reconnect-token:([0-9a-f]{32})\n", self.heard)
        assert found, self.heard
        self.token = found[1].decode()

    async def say(self, data: bytes, *, lost_from: int | None = None) -> None:
        """`data`, of which the broker gets what is before `lost_from`."""
        self.said += data
        assert self.peer is not None
        await self._served.say(self.peer, data[:lost_from])

    async def listen(self, *, lost_from: int | None = None) -> bytes:
        """What came, of which the client gets what is before `lost_from`."""
        await self._served.rest()
        assert self.peer is not None
        data = self.peer.read()[:lost_from]
        self.heard += data
        return data

    async def lose(self) -> None:
        """The socket breaks, and the broker notices."""
        assert self.peer is not None
        await self._served.hang_up(self.peer)

    async def come_back(self, **headers: object) -> bool:
        """On another socket. False: the broker does not know us any more."""
        shown = {"amq-reconnect-token": self.token, "amq-received": len(self.heard), "amq-repeats-from": 0}
        self.peer = await self._served.connect(frame("CONNECT", {**self._headers, **shown, **headers}))
        await self._served.rest()
        answer, _, rest = self.peer.read().partition(b"\0")
        assert answer.startswith(b"CONNECTED\n"), answer
        found = re.search(rb"\namq-received:([0-9]+)\n", answer)
        if found is None:
            return False
        self.heard += rest
        await self._served.say(self.peer, self.said[int(found[1]) :])
        return True


def bodies(heard: bytes) -> list[bytes]:
    return re.findall(rb"MESSAGE\n(?:[^\n]+\n)*\n([^\0]*)\0", heard)


def receipts(heard: bytes) -> list[bytes]:
    return re.findall(rb"RECEIPT\nreceipt-id:([^\n]+)\n", heard)


def acks(heard: bytes) -> list[str]:
    return [each.decode() for each in re.findall(rb"\nack:([^\n]+)\n", heard)]


def send(body: str, receipt: str, **headers: str) -> bytes:
    return frame("SEND", {"destination": "/queue/a", "receipt": receipt, **headers}, body.encode())


SUBSCRIBE = frame("SUBSCRIBE", {"id": "s", "destination": "/queue/a", "ack": "client-individual"})


def serve(path: Path, test: Callable[[Served], Awaitable[None]], **config: Any) -> None:
    """Run `test` with a broker and connections that have one clock, which pauses."""

    async def with_one_clock(served: Served) -> None:
        served.hub.clock = served.world.clock
        await test(served)

    harness.serve(path, with_one_clock, **config)


def test_a_lost_client_keeps_deliveries_transactions_and_temporary_queues(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.say(SUBSCRIBE + send("one", "r1") + send("two", "r2"))
        await client.say(frame("SUBSCRIBE", {"id": "t", "destination": "/temp-queue/x"}))
        await client.say(frame("BEGIN", {"transaction": "t1"}) + send("three", "r3", transaction="t1"))
        await client.listen()
        assert bodies(client.heard) == [b"one", b"two"]
        number = client.peer.connection.number  # type: ignore[union-attr]
        await client.lose()
        assert not served.connections, "it does not count among those that are there"
        assert len(served.hub.parking.parked) == 1
        other = await served.connect(frame("CONNECT", {"accept-version": "1.2", "host": "x"}), SUBSCRIBE)
        assert b"MESSAGE" not in other.read(), "what it holds goes to nobody else"
        reply_to = f"/remote-temp-queue/{served.hub.epoch}-{number}.x"
        await served.say(other, frame("SEND", {"destination": reply_to}, b"reply"))
        await served.hang_up(other)
        assert await client.come_back()
        assert not served.hub.parking.parked
        first, second = acks(client.heard)
        await client.say(frame("ACK", {"id": first}) + frame("ACK", {"id": second, "transaction": "t1"}))
        await client.say(frame("COMMIT", {"transaction": "t1", "receipt": "c"}))
        await client.listen()
        assert receipts(client.heard) == [b"r1", b"r2", b"r3", b"c"]
        assert bodies(client.heard)[2:] in ([b"reply", b"three"], [b"three", b"reply"])
        assert b"redelivered" not in client.heard
        assert served.world.stored() == [b"three"]

    serve(tmp_path, test)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_cut_at_any_byte_in_both_directions_each_byte_counts_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, seed: int
) -> None:
    """The client sends, consumes, acknowledges in transactions or not; its sockets break, before or after the broker
    notices, and what was on the way is lost on both sides."""

    async def test(served: Served) -> None:
        dice = Random(seed)
        client = Returning(served)
        await client.connect()
        await client.say(SUBSCRIBE)
        acked, sent, open_at = set[str](), 0, -1
        for step in range(data.draw(st.integers(1, 12))):
            said = b""
            for _ in range(dice.randint(1, 4)):
                waiting = [ack for ack in acks(client.heard) if ack not in acked]
                if open_at < 0 and dice.random() < 0.3:
                    open_at = step
                    said += frame("BEGIN", {"transaction": f"t{open_at}"})
                inside = {"transaction": f"t{open_at}"} if open_at >= 0 and dice.random() < 0.6 else {}
                if waiting and dice.random() < 0.6:
                    ack = dice.choice(waiting)
                    acked.add(ack)
                    said += frame("ACK", {"id": ack, "receipt": f"a{ack}", **inside})
                else:
                    said += send(f"m{sent}", f"s{sent}", **inside)
                    sent += 1
                if open_at >= 0 and dice.random() < 0.4:
                    said += frame("COMMIT", {"transaction": f"t{open_at}", "receipt": f"c{open_at}"})
                    open_at = -1
            breaks = dice.random() < 0.6
            await client.say(said, lost_from=dice.randrange(len(said) + 1) if breaks else None)
            if not breaks:
                await client.listen()
                if dice.random() < 0.3:
                    await client.say(received(len(client.heard)))
                continue
            await client.listen(lost_from=dice.randrange(400))
            if dice.random() < 0.6:
                await client.lose()
            assert await client.come_back()
            await client.listen()
        if open_at >= 0:
            await client.say(frame("COMMIT", {"transaction": f"t{open_at}", "receipt": "end"}))
        await client.listen()
        for ack in [ack for ack in acks(client.heard) if ack not in acked]:
            await client.say(frame("ACK", {"id": ack, "receipt": f"a{ack}"}))
        await client.listen()
        assert sorted(bodies(client.heard)) == sorted(f"m{number}".encode() for number in range(sent))
        assert b"redelivered" not in client.heard
        assert b"ERROR" not in client.heard
        asked = re.findall(rb"\nreceipt:([^\n]+)\n", client.said)
        assert sorted(receipts(client.heard)) == sorted(asked)
        assert served.world.stored() == []

    serve(tmp_path_factory.mktemp("reattach"), test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"amq-reconnect-token": "0" * 32},
        {"amq-received": 10**9},
        {"amq-repeats-from": 10**9},
        {"client-id": "other"},
        {"amq-client-instance": "other"},
        {"login": "mallory"},
        {"accept-version": "1.1"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_client_that_cannot_have_it_begins_anew_and_is_told_nothing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async def test(served: Served) -> None:
        async def authenticate(claim: Claim) -> Login:
            return Login(User(claim.login or "alice"), "password")

        served.hub.authenticate = authenticate
        client = Returning(served)
        await client.connect()
        await client.say(SUBSCRIBE + send("one", "r1"))
        await client.listen()
        await client.lose()
        assert not await client.come_back(**wrong)
        assert len(served.hub.parking.parked) == 1, "and the right one still gets it"
        assert await client.come_back()

    serve(tmp_path, test)


def test_who_says_more_than_connect_before_it_has_the_answer_begins_anew(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.lose()
        shown = {"amq-reconnect-token": client.token, "amq-received": len(client.heard), "amq-repeats-from": 0}
        peer = await served.connect(frame("CONNECT", {**HEADERS, **shown}) + send("x", "r"))
        assert b"amq-received" not in peer.read().replace(b"RECEIVED", b"")
        assert receipts(peer.said) == [b"r"]

    serve(tmp_path, test)


def test_the_window_ends_and_messages_go_to_others(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served, **{"amq-reconnect-window": "200"})
        await client.connect()
        await client.say(SUBSCRIBE + send("one", "r1"))
        await client.listen()
        other = await served.connect(frame("CONNECT", {"accept-version": "1.2", "host": "x"}), SUBSCRIBE)
        await client.lose()
        assert served.hub.parking.parked
        served.world.clock.advance(0.2)
        while served.hub.parking.parked:
            await asyncio.sleep(0.01)
        await served.rest()
        assert bodies(other.read()) == [b"one"]
        assert b"redelivered:true" in other.said, "as with any client that was lost"
        assert len(served.hub.parking) == 0
        assert not await client.come_back()

    serve(tmp_path, test)


def test_the_brokers_window_is_the_longest(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        assert b"\namq-reconnect-window:500\n" in client.heard
        assert b"\namq-confirmation-window:2048\n" in client.heard

    serve(tmp_path, test, reconnect_window_s=0.5, confirmation_window_size_bytes=2048)


@pytest.mark.parametrize("config", [{"reconnect_window_s": 0.0}, {"confirmation_window_size_bytes": 0}], ids=str)
def test_a_broker_that_grants_it_to_nobody(tmp_path: Path, config: dict[str, Any]) -> None:
    async def test(served: Served) -> None:
        peer = await served.connect(frame("CONNECT", dict(HEADERS)))
        assert b"amq-reconnect" not in peer.read()
        await served.hang_up(peer)
        assert len(served.hub.parking) == 0

    serve(tmp_path, test, **config)


@pytest.mark.parametrize("goodbye", [frame("DISCONNECT"), frame("DISCONNECT", {"receipt": "d"}), b"NONSENSE\n\n\0"])
def test_a_client_that_has_ended_keeps_nothing(tmp_path: Path, goodbye: bytes) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.say(goodbye)
        await client.lose()
        assert len(served.hub.parking) == 0
        assert not served.hub.parking.parked

    serve(tmp_path, test)


def test_a_client_that_lacks_more_than_the_window_begins_anew(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        before = len(client.heard)
        await client.say(SUBSCRIBE + send("x" * 3000, "r1") + send("y" * 3000, "r2"))
        await client.listen()
        await client.lose()
        client.heard = client.heard[:before]
        assert not await client.come_back()

    serve(tmp_path, test, confirmation_window_size_bytes=4096)


def test_confirmed_bytes_make_room_in_the_window_and_each_side_confirms(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        for number in range(40):
            await client.say(send("x" * 500, f"r{number}"))
            await client.listen()
            await client.say(received(len(client.heard)))
            assert served.hub.parking.held_bytes < 2048
        counts = [int(each) for each in re.findall(rb"RECEIVED\nbytes:([0-9]+)\n", client.heard)]
        assert len(counts) >= 15, "four times in a window of 4096 bytes"
        assert counts == sorted(counts)
        assert len(client.said) - 2048 < counts[-1] <= len(client.said)
        await client.lose()
        assert await client.come_back()

    serve(tmp_path, test, confirmation_window_size_bytes=4096)


def test_a_client_that_falls_silent_is_kept_too(tmp_path: Path) -> None:
    """A cable was pulled: there is no end of the connection, only no heart-beat."""

    async def test(served: Served) -> None:
        client = Returning(served, **{"heart-beat": "40,0"})
        await client.connect()
        await client.say(SUBSCRIBE + send("one", "r1"))
        await client.listen()
        while not served.hub.parking.parked:
            await asyncio.sleep(0.01)
        assert not served.connections
        assert client.peer is not None
        assert client.peer.read() == b"", "no error is told, which would end what is kept"
        assert await client.come_back()
        await client.say(frame("ACK", {"id": acks(client.heard)[0], "receipt": "a"}))
        await client.listen()
        assert receipts(client.heard) == [b"r1", b"a"]

    harness.serve(tmp_path, test, heart_beat_receive_s=0.04)


def test_a_second_look_at_a_silent_client_ends_with_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look was due already, in one of the next rounds of the event loop. It took the timer of the parked connection
    for its own, so that this one went off after the connection had ended."""
    monkeypatch.setattr(socket_module, "SECOND_LOOK_S", 0)

    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        assert client.peer is not None
        connection = client.peer.connection
        socket = connection.socket
        assert socket is not None
        assert socket._timer is not None
        socket._timer.cancel()
        socket._too_late(ProtocolError("silent", code="HEARTBEAT_TIMEOUT"), socket.tick)
        await asyncio.sleep(0)  # the timer goes off, and puts the look off
        socket.connection_lost(None)
        assert connection in served.hub.parking.parked
        assert socket._timer is None
        timer = connection._parked
        await served.rest()
        assert connection._parked is timer

    serve(tmp_path, test)


@pytest.mark.deep
def test_thousands_of_lost_clients_are_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        parking = served.hub.parking
        first: list[str] = []
        for number in range(2000):
            client = Returning(served)
            await client.connect()
            await client.say(frame("SUBSCRIBE", {"id": "t", "destination": "/temp-queue/x", "receipt": "x" * 200}))
            await client.lose()
            first.append(client.token)
            assert len(parking.parked) <= 50
            assert len(parking) <= 50
            assert parking.held_bytes <= 4096, number
        assert len(served.world.broker.temporaries.owned) == 50, "the others are gone with all that they had"
        parking.close()
        assert (len(parking), len(parking.parked), parking.held_bytes) == (0, 0, 0)
        assert not served.world.broker.temporaries.owned
        assert len(set(first)) == 2000

    serve(tmp_path, test, max_connections=50, confirmation_window_limit_bytes=4096)


def test_nothing_is_left_of_one_that_came_back_or_did_not(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        with harness.Uncollected() as uncollected:
            for ends in (True, False):
                client = Returning(served)
                await client.connect()
                await client.say(SUBSCRIBE + frame("BEGIN", {"transaction": "t"}) + send("one", "r", transaction="t"))
                await client.lose()
                assert await client.come_back()
                await client.lose()
                if ends:
                    next(iter(served.hub.parking.parked)).abort()
                else:
                    assert await client.come_back()
                    await client.say(frame("DISCONNECT"))
                    await client.lose()
                client.peer = None
                await served.rest()
                found = uncollected.found()
                assert not [kind for kind in found if kind.startswith("amq.")], found

    serve(tmp_path, test)


def test_a_master_that_ends_keeps_nobody(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client, lost, late = Returning(served), Returning(served), Returning(served)
        await client.connect()
        await lost.connect()
        await lost.lose()
        served.hub.parking.close()
        assert not served.hub.parking.parked
        await client.lose()
        assert not served.hub.parking.parked
        late.peer = await served.connect(frame("CONNECT", dict(HEADERS)))
        assert b"amq-reconnect-token" not in late.peer.read()
        assert len(served.hub.parking) == 0

    serve(tmp_path, test)


def test_a_socket_that_breaks_while_its_login_is_checked_gets_nothing_back(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.lose()
        authenticate, checked = served.hub.authenticate, asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            await checked.wait()
            return await authenticate(*arguments)

        served.hub.authenticate = slow
        shown = {"amq-reconnect-token": client.token, "amq-received": len(client.heard), "amq-repeats-from": 0}
        peer = await served.connect(frame("CONNECT", {**HEADERS, **shown}))
        stream = peer.connection.socket.stream
        assert stream is not None
        stream.abort()  # and the login is there before the end of the socket is told
        checked.set()
        await served.until(lambda: not served.connections, "the end")
        await served.rest()
        assert len(served.hub.parking) == len(served.hub.parking.parked) == 1
        assert await client.come_back()

    serve(tmp_path, test)


def test_the_newest_list_of_brokers_is_the_last_that_a_client_hears(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.brokers = ("stomp://a:1", "stomp://b:2")
        client = Returning(served, **{"amq-brokers-receipt": "brokers"})
        await client.connect()
        connection = next(iter(served.connections.values()))
        served.brokers = ("stomp://a:1",)
        connection.tell_brokers()
        await served.rest()  # and it does not hear that
        await client.lose()
        served.brokers = ("stomp://c:3",)
        assert await client.come_back()
        await client.listen()
        lists = re.findall(rb"RECEIPT\nreceipt-id:brokers\nbrokers:([^\n]+)\n", client.heard)
        assert lists == [rb"stomp\c//a\c1", rb"stomp\c//c\c3"]

    serve(tmp_path, test)


def test_an_unfinished_frame_larger_than_the_window_is_not_kept(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.say(frame("SEND", {"destination": "/queue/a", "content-length": 10_000})[:-1] + b"x" * 5000)
        await client.lose()
        assert not served.hub.parking.parked

    serve(tmp_path, test, confirmation_window_size_bytes=4096)


def test_an_open_transaction_of_a_lost_client_times_out(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.say(frame("BEGIN", {"transaction": "t"}) + send("one", "r1", transaction="t"))
        await client.lose()
        assert served.hub.parking.parked
        served.world.clock.advance(11)
        while served.hub.parking.parked:
            await asyncio.sleep(0.01)
        assert not await client.come_back()

    serve(tmp_path, test, transaction_timeout_s=10.0)


def test_a_program_that_starts_again_ends_what_is_kept_for_the_one_that_was_killed(tmp_path: Path) -> None:
    subscribe = frame("SUBSCRIBE", {"id": "d", "destination": "/topic/t", "activemq.subscriptionName": "n"})

    async def test(served: Served) -> None:
        client = Returning(served, **{"client-id": "c", "amq-client-instance": "1"})
        await client.connect()
        await client.say(subscribe)
        await client.lose()
        again = Returning(served, **{"client-id": "c", "amq-client-instance": "2"})
        await again.connect()
        assert not served.hub.parking.parked
        await again.say(subscribe)
        assert b"ERROR" not in await again.listen()

    serve(tmp_path, test)


def test_a_large_body_goes_on_in_the_middle(tmp_path: Path) -> None:
    body = "z" * (3 << 20)

    async def test(served: Served) -> None:
        client = Returning(served)
        await client.connect()
        await client.say(SUBSCRIBE + send(body, "r1"))
        assert client.peer is not None
        first = client.peer.read()
        while len(first) < 200_000:
            first += client.peer.read()
            await asyncio.sleep(0)
        client.heard += first[:150_000]  # the rest was in the socket that broke
        assert len(client.heard) < len(body), "it is in the middle"
        assert await client.come_back()  # noticed by the client alone
        while bodies(client.heard) != [body.encode()]:
            await client.listen()
        assert receipts(client.heard) == [b"r1"]

    serve(tmp_path, test, confirmation_window_size_bytes=8 << 20)


@given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 100)), max_size=30), size=st.integers(0, 100))
def test_a_window_keeps_what_it_says(steps: list[tuple[int, int]], size: int) -> None:
    window, stream, dice = Window(size), b"", Random(1)
    for pushed, confirmed in steps:
        data = dice.randbytes(pushed)
        window.push(data)
        stream += data
        window.confirm(min(confirmed, len(stream)))
        assert window.end == len(stream)
        assert window.held_bytes <= size
        for count in range(len(stream) + 2):
            if window.covers(count):
                assert b"".join(window.since(count)) == stream[count:]
        assert window.covers(len(stream))
