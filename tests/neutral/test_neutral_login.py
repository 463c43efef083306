"""A login in steps over sockets: who gets in, that both sides are proven, and what a stranger can cost."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

import pytest

from amq.security.gate import LoginGate
from amq.security.login import Claim, Login, User, refusal
from amq.security.users import hash_password
from amq.transports.authenticating import RESPONSE_BYTES_MAX, STEPS_MAX
from tests.fakes import FakeClock
from tests.neutral.client import NeutralClient
from tests.neutral.wire import HEAD, MAGIC, STRANGER_BYTES_MAX, Op, frame
from tests.neutral.world import Link, link, play, stomp
from tests.patience import DEADLINE_S
from tests.transports.served import Served, Uncollected

Q = "queue://q"
SECRET, NONCE = b"a secret that both sides know", b"a number used once"


def proof(whose: bytes) -> bytes:
    return hmac.digest(SECRET, whose + NONCE, hashlib.sha256)


def connect(client_id: str = "") -> bytes:
    """Without what each connection begins with."""
    return NeutralClient().connect(client_id).removeprefix(MAGIC)


async def proofs(claim: Claim) -> Login:
    """A mechanism in which the secret never travels: a name, a number, a proof of each side."""
    exchange = claim.exchange
    if exchange is None:
        return Login(User("alice"), "password")
    exchange.login = exchange.response.decode()
    if await exchange.ask(NONCE) != proof(b"client"):
        raise refusal()
    exchange.last = proof(b"broker")
    return Login(User(exchange.login), "proof")


async def comes(ready: Callable[[], object]) -> None:
    """Threads and timers take time of the real clock."""
    async with asyncio.timeout(DEADLINE_S):
        while not ready():
            await asyncio.sleep(0.005)


async def begin(served: Served, *frames: bytes) -> Link:
    client = Link(served, await served.connect())
    await client.say(MAGIC, *frames)
    return client


async def refused(client: Link) -> str:
    """The code of the error with which the connection ends."""
    await client.until(lambda: client.errors, "the refusal")
    await client.until(lambda: not client.is_open, "the end of the connection")
    assert client.connected == ""
    return client.errors[-1].code


def test_two_steps_prove_both_sides(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.hub.authenticate = proofs
        client = await begin(served, NeutralClient.step(b"bob", "PROOFS"))
        assert client.challenges == [(NONCE, False)]
        await client.say(NeutralClient.step(proof(b"client")))
        assert client.challenges[1:] == [(proof(b"broker"), True)]
        assert client.connected == ""
        await client.say(connect("me"))
        await client.until(lambda: client.connected, "the login")
        assert [(each.user, each.client_id) for each in served.connections.values()] == [("bob", "me")]
        await client.do(client.send(Q, b"x" * STRANGER_BYTES_MAX))
        other = await stomp(served)
        await other.say("SEND", b"from one that shows a passcode", destination="/queue/q")
        assert served.hub.door.logins == {"ok": 2}

    play(tmp_path, test)


@pytest.mark.parametrize("at_once", [True, False])
def test_connect_may_come_with_the_first_step(tmp_path: Path, at_once: bool) -> None:
    """As in protocols whose CONNECT begins the steps. A client that knows the answer need not wait for the question."""

    async def test(served: Served) -> None:
        served.hub.authenticate = proofs
        first, second = NeutralClient.step(b"bob", "PROOFS", "me", "i"), NeutralClient.step(proof(b"client"))
        if at_once:
            client = await begin(served, first, second)
        else:
            client = await begin(served, first)
            await client.say(second)
        await client.until(lambda: client.connected, "the login")
        assert client.challenges == [(NONCE, False), (proof(b"broker"), True)]
        assert [(each.user, each.client_id) for each in served.connections.values()] == [("bob", "me")]

    play(tmp_path, test)


def test_all_of_it_may_be_sent_ahead(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.hub.authenticate = proofs
        client = Link(served, await served.connect())
        ahead = [NeutralClient.step(b"bob", "PROOFS"), NeutralClient.step(proof(b"client")), connect()]
        await client.say(MAGIC, *ahead, *(client.send(Q, b"%d" % n) for n in range(300)))
        await client.until(lambda: client.number in client.done, "the last receipt")
        assert client.errors == []
        assert served.world.stored("q") == [b"%d" % n for n in range(300)]

    play(tmp_path, test)


@pytest.mark.parametrize("waits_to_be_asked", [True, False])
def test_plain_is_checked_by_the_gate(tmp_path: Path, waits_to_be_asked: bool) -> None:
    (tmp_path / "users").write_text(f"alice:{hash_password('sesame')}\n")
    (tmp_path / "users").chmod(0o600)

    async def test(served: Served) -> None:
        gate = LoginGate(str(tmp_path / "users"), "no")
        served.hub.authenticate = gate.authenticate

        async def attempt(mechanism: str, response: bytes) -> Link:
            if waits_to_be_asked and mechanism == "PLAIN":
                client = await begin(served, NeutralClient.step(b"", mechanism))
                assert client.challenges == [(b"", False)]
                await client.say(NeutralClient.step(response))
            else:
                client = await begin(served, NeutralClient.step(response, mechanism))
            await comes(lambda: client.hear() or client.errors or (client.challenges and client.challenges[-1][1]))
            return client

        client = await attempt("PLAIN", b"\0alice\0sesame")
        await client.say(connect())
        await client.until(lambda: client.connected, "the login")
        wrong = (b"\0alice\0wrong", b"bob\0alice\0sesame", b"alice", b"\0\xff\0", b"\0\0\0\0")
        for number, response in enumerate(wrong, start=1):
            assert await refused(await attempt("PLAIN", response)) == "LOGIN_REFUSED"
            assert served.hub.door.logins["LOGIN_REFUSED"] == number
        assert await refused(await attempt("DIGEST-MD5", b"")) == "LOGIN_REFUSED"
        gate.close()

    play(tmp_path, test)


@pytest.mark.parametrize("size", [0, RESPONSE_BYTES_MAX // 3])
def test_steps_and_their_bytes_have_a_limit(tmp_path: Path, size: int) -> None:
    """Whatever the mechanism asks for. A client that reaches it has guessed."""
    asked: list[int] = []

    async def never_content(claim: Claim) -> Login:
        assert claim.exchange is not None
        while True:
            asked.append(len(await claim.exchange.ask(b"more")))

    async def test(served: Served) -> None:
        served.hub.authenticate = never_content
        client = await begin(served, NeutralClient.step(bytes(size), "M"))
        while not client.errors:
            await client.say(NeutralClient.step(bytes(size)))
        assert await refused(client) == "LOGIN_REFUSED"
        assert len(asked) == (2 if size else STEPS_MAX - 1)
        assert served.hub.door.logins == {"LOGIN_REFUSED": 1}
        large = await begin(served, HEAD.pack(STRANGER_BYTES_MAX + 1, Op.LOGIN, 0, 0))
        assert await refused(large) == "FRAME_INVALID"

    play(tmp_path, test)


@pytest.mark.parametrize("when", ["during", "after"])
@pytest.mark.parametrize("what", ["SEND", "garbage", "CONNECT", "LOGIN"])
def test_each_step_has_its_turn(tmp_path: Path, when: str, what: str) -> None:
    """A step is due while there is a challenge, and afterwards a CONNECT."""

    async def test(served: Served) -> None:
        served.hub.authenticate = proofs
        client = await begin(served, NeutralClient.step(b"bob", "PROOFS"))
        if when == "after":
            await client.say(NeutralClient.step(proof(b"client")))
            assert client.challenges[-1][1]
        frames = {
            "SEND": client.send(Q, b"x"),
            "garbage": frame(Op.SEND),
            "CONNECT": connect(),
            "LOGIN": NeutralClient.step(b"wrong"),
        }
        await client.say(frames[what])
        if (what, when) == ("CONNECT", "after"):
            await client.until(lambda: client.connected, "the login")
        else:
            await refused(client)
        assert served.world.stored("q") == []

    play(tmp_path, test)


def test_the_time_for_a_login_is_that_of_all_steps(tmp_path: Path) -> None:
    """And that of the broker, which checks one, does not count."""

    async def test(served: Served) -> None:
        clock = served.hub.clock = FakeClock()
        checked: list[asyncio.Event] = []

        async def slow(claim: Claim) -> Login:
            assert claim.exchange is not None
            while True:
                checked.append(asyncio.Event())
                await checked[-1].wait()
                await claim.exchange.ask(b"go on")

        async def step(client: Link) -> None:
            """It takes the broker longer than a client may take."""
            count = len(client.challenges)
            clock.advance(5000.0)
            checked[-1].set()
            await client.until(lambda: len(client.challenges) > count, "the next challenge")

        served.hub.authenticate = slow
        client = await begin(served, NeutralClient.step(b"", "M"))
        await step(client)
        clock.advance(600.0)
        await client.say(NeutralClient.step(b""))
        await step(client)
        assert client.is_open
        clock.advance(600.0)
        await client.say(NeutralClient.step(b""))  # its time is over, but so far no timer has looked
        await step(client)
        await comes(lambda: client.hear() or client.errors)
        assert await refused(client) == "CONNECT_TIMEOUT"

    play(tmp_path, test, connect_timeout_s=1000.0)


def test_a_client_that_says_nothing_more_is_refused(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.hub.authenticate = proofs
        during = await begin(served, NeutralClient.step(b"bob", "PROOFS"))
        after = await begin(served, NeutralClient.step(b"bob", "PROOFS"), NeutralClient.step(proof(b"client")))
        for client in (during, after):
            await comes(lambda: client.hear() or client.errors)  # noqa: B023
            assert await refused(client) == "CONNECT_TIMEOUT"

    play(tmp_path, test, connect_timeout_s=0.1)


def test_nothing_is_left_of_one_that_goes(tmp_path: Path) -> None:
    """In the middle of the steps, after them, or with a mistake."""

    async def test(served: Served) -> None:
        served.hub.authenticate = proofs
        first, second = NeutralClient.step(b"bob", "PROOFS"), NeutralClient.step(proof(b"client"))
        await (await link(served)).hang_up()
        with Uncollected() as left:
            for frames in (
                [first],
                [first, second],
                [first, NeutralClient.step(b"wrong")],
                [first, MAGIC + b"garbage"],
            ):
                client = await begin(served, *frames)
                await client.hang_up()
                del client
            await served.rest()
            assert not [name for name in left.found() if name.startswith("amq.")]

    play(tmp_path, test)
