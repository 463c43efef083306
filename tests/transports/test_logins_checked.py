"""A login that is checked: its time is the broker's, and a client that goes meanwhile has guessed all the same."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from amq.core.errors import AccessError
from amq.security.authentication import Authenticator
from amq.security.login import Claim, Login, User
from amq.security.passwords import Passwords
from amq.security.users import Users
from tests.certificates import Authority, needs_openssl
from tests.patience import DEADLINE_S
from tests.transports.served import Served, Tls, frame, serve

LIMIT = 3


def login(passcode: str) -> bytes:
    return frame("CONNECT", {"accept-version": "1.2", "host": "x", "login": "alice", "passcode": passcode})


async def comes(ready: Callable[[], bool]) -> None:
    """Threads and timers take time of the real clock."""
    async with asyncio.timeout(DEADLINE_S):
        while not ready():
            await asyncio.sleep(0.005)


def test_time_in_the_queue_of_the_broker_is_not_the_client_s(tmp_path: Path) -> None:
    """A login that is checked late is not too late; a client that says nothing is."""

    async def test(served: Served) -> None:
        go = asyncio.Event()

        async def authenticate(_: Claim) -> Login:
            await go.wait()
            return Login(User("alice"), "password")

        served.hub.authenticate = authenticate
        waits = await served.connect(login("a word"))
        silent = await served.connect()
        await comes(lambda: b"code:CONNECT_TIMEOUT\n" in [silent.read(), silent.said][1])
        assert waits.read() == b""
        go.set()
        await served.until(lambda: [waits.read(), waits.said][1].startswith(b"CONNECTED"), "its login")

    serve(tmp_path, test, connect_timeout_s=0.1)


class Slow(Authenticator):
    """Decides when it is told to, as if scrypt took so long."""

    def __init__(self) -> None:
        super().__init__(Users({}), "no")
        self.begun: list[str] = []
        self.loop = asyncio.get_running_loop()
        self.go: asyncio.Queue[None] = asyncio.Queue()

    def verify(self, login: str, passcode: str) -> str:
        self.loop.call_soon_threadsafe(self.begun.append, passcode)
        asyncio.run_coroutine_threadsafe(self.go.get(), self.loop).result()
        return super().verify(login, passcode)


@pytest.fixture
def tls(authority: Authority) -> Tls:
    server, pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority.pair("server")
    server.load_cert_chain(pair.certificate, pair.key)
    return Tls(server, ssl.create_default_context(cafile=str(authority.trust)))


@needs_openssl
def test_a_client_that_hangs_up_while_its_login_is_checked_has_guessed(tmp_path: Path, tls: Tls) -> None:
    """Over TLS the end of a connection is noticed also while it is not read."""

    async def test(served: Served) -> None:
        slow = Slow()
        passwords = Passwords(slow)
        served.hub.authenticate = passwords.login
        door = served.hub.door
        for number in range(LIMIT):
            peer = await served.connect(login(f"guess {number}"), tls=tls)
            await comes(lambda: len(slow.begun) == number + 1)  # noqa: B023
            await served.hang_up(peer)
            door.check("127.0.0.1")
            slow.go.put_nowait(None)
            await comes(lambda: len(door.failures.get("127.0.0.1", ())) == number + 1)  # noqa: B023
        with pytest.raises(AccessError, match="failedLoginsPerMinute"):
            door.check("127.0.0.1")
        passwords.close()

    serve(tmp_path, test, failed_logins_per_minute=LIMIT)
