"""A directory whose answers change on their way, or drip: in time a login or a refusal comes of it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from random import Random

import pytest

from amq.core.errors import AccessError
from amq.security import Claim
from amq.security.directory import PATIENCE, LdapDirectory
from tests.certificates import Authority, needs_openssl
from tests.security.test_ldap_directory import Settings
from tests.slapd import PASSWORDS, Slapd, needs_directory

pytestmark = [needs_directory, needs_openssl, pytest.mark.deep]
CHANGED = 40


@pytest.fixture(scope="module")
def slapd(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    slapd = Slapd(tmp_path_factory.mktemp("slapd"), authority.pair("server"), authority.trust)
    yield slapd
    slapd.stop()


class Between:
    """Passes on what the client says, and what the server answers as `bend` gives it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._stack = ExitStack()
        self._ends: list[socket.socket] = []
        self._closing = threading.Event()
        self._server = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def bend(self, data: bytes) -> Iterator[bytes]:
        yield data

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._stack.enter_context(self._server.accept()[0])
                server = self._stack.enter_context(socket.create_connection(("127.0.0.1", self._to)))
                self._ends += [client, server]
                for ends in ((client, server, False), (server, client, True)):
                    self._threads.append(threading.Thread(target=self._pass, args=ends, daemon=True))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, bends: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                for part in self.bend(data) if bends else [data]:
                    target.sendall(part)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for sock in self._ends:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._stack.close()


class Changing(Between):
    """Changes, drops, doubles or adds bytes in about every third answer."""

    dice = Random(0)

    def bend(self, data: bytes) -> Iterator[bytes]:
        bent, at = bytearray(data), self.dice.randrange(len(data))
        match self.dice.randrange(14):
            case 0:
                bent[at] ^= 1 << self.dice.randrange(8)
            case 1:
                bent[at] = self.dice.randrange(256)
            case 2:
                del bent[at : at + self.dice.randrange(1, 9)]
            case 3:
                bent[at:at] = self.dice.randbytes(self.dice.randrange(1, 9))
            case 4:
                bent += bytes(bent)
        yield bytes(bent)


class Dripping(Between):
    """One byte each 0.3 s, so that no step ever takes too long."""

    pause = threading.Event()  # never set

    def bend(self, data: bytes) -> Iterator[bytes]:
        for number in range(len(data)):
            if self._closing.wait(0.3):
                return
            yield data[number : number + 1]


@contextmanager
def directory(between: Between) -> Iterator[LdapDirectory]:
    settings = Settings(f"ldap://127.0.0.1:{between.port}", ldap_start_tls=False)
    way = LdapDirectory(replace(settings, ldap_timeout_s=1.0), lambda _: False)
    try:
        yield way
    finally:
        way.close()
        between.close()


def test_answers_that_are_changed_on_their_way(slapd: Slapd) -> None:
    """Nothing protects them on a connection in the clear: what counts is that the broker survives them."""
    outcomes = set()
    for seed in range(CHANGED):
        between = Changing(slapd.port)
        between.dice = Random(seed)
        with directory(between) as way:
            try:
                login = asyncio.run(way.login(Claim("alice", PASSWORDS["alice"])))
            except AccessError as error:
                outcomes.add(error.code)
            else:
                assert login.user.name == "alice"
                outcomes.add("in")
    assert outcomes >= {"in", "LOGIN_UNAVAILABLE"}


def test_a_directory_that_drips_is_given_up(slapd: Slapd) -> None:
    with directory(Dripping(slapd.port)) as way:

        async def scenario() -> None:
            began = time.monotonic()
            with pytest.raises(AccessError, match="too slow"):
                await way.login(Claim("alice", PASSWORDS["alice"]))
            assert time.monotonic() - began >= PATIENCE

        asyncio.run(scenario())
