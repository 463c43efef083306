"""A directory that never stops answering: a login fails, and the broker holds little of what came."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("ldap3")

from amq.core.errors import AccessError
from amq.security import Claim
from amq.security.directory import ANSWERS_BYTES_MAX, LdapDirectory
from tests.security.test_ldap_directory import Settings

SOCKETS_BYTES_MAX = 16 << 20  # what the kernel holds of a connection on loopback
ENDLESS_BYTES = 256 << 20


def ber(tag: int, content: bytes) -> bytes:
    return bytes((tag, 0x84)) + len(content).to_bytes(4, "big") + content


def message_id(request: bytes) -> bytes:
    """The id of an LDAP request, as its encoded integer."""
    at = request.index(b"\x02", 2)
    return request[at : at + 2 + request[at + 1]]


def result(request: bytes, tag: int) -> bytes:
    return ber(0x30, message_id(request) + ber(tag, b"\x0a\x01\x00\x04\x00\x04\x00"))


def entry(request: bytes) -> bytes:
    values = ber(0x31, ber(4, b"x" * 60_000))
    return ber(0x30, message_id(request) + ber(0x64, ber(4, b"uid=a") + ber(0x30, ber(0x30, ber(4, b"uid") + values))))


def one_endless_message(_: bytes) -> Iterator[bytes]:
    yield b"\x30\x84\x7f\xff\xff\xff"
    for _ in range(ENDLESS_BYTES >> 16):
        yield bytes(1 << 16)


def endless_entries(request: bytes) -> Iterator[bytes]:
    if request[7:8] == b"\x60" or b"\x60" in request[:12]:
        yield result(request, 0x61)
        return
    each = entry(request)
    for _ in range(ENDLESS_BYTES // len(each)):
        yield each


@pytest.mark.parametrize("answer", [one_endless_message, endless_entries])
def test_endless_answers_are_cut(answer: Callable[[bytes], Iterator[bytes]]) -> None:
    sent = 0

    def serve(listening: socket.socket) -> None:
        nonlocal sent
        with suppress(OSError), listening.accept()[0] as sock:
            while request := sock.recv(1 << 16):
                for piece in answer(request):
                    sock.sendall(piece)
                    sent += len(piece)

    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        url = f"ldap://127.0.0.1:{listening.getsockname()[1]}"
        way = LdapDirectory(Settings(url, ldap_start_tls=False, ldap_timeout_s=5.0), lambda _: False)
        with pytest.raises(AccessError, match="directory"):
            asyncio.run(way.login(Claim("alice", "secret")))
        way.close()
        serving.join()
    assert ANSWERS_BYTES_MAX < sent < ANSWERS_BYTES_MAX + SOCKETS_BYTES_MAX
