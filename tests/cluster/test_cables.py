"""The cables of the killer: both ends of a link that is cut hear of it, whoever was forked while it was there."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.cables import HOME, HOST, Cables
from tests.patience import DEADLINE_S
from tests.ports import free_port


class Ends:
    """A cable, and a connection through it."""

    def __init__(self, stack: ExitStack) -> None:
        self.port = free_port()
        server = stack.enter_context(socket.create_server((HOME, self.port)))
        self.cables = Cables([self.port])
        stack.callback(self.cables.close)
        self.gateway = stack.enter_context(socket.create_connection((HOST, self.port), DEADLINE_S))
        server.settimeout(DEADLINE_S)
        self.home = stack.enter_context(server.accept()[0])
        self.home.settimeout(DEADLINE_S)

    def passes(self) -> bool:
        self.gateway.sendall(b"?")
        return self.home.recv(1) == b"?"


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


@pytest.fixture
def child(ends: Ends) -> Iterator[None]:
    """A process that is forked while the connection is there."""
    assert ends.passes()
    context = multiprocessing.get_context("fork")
    done = context.Event()
    process = context.Process(target=done.wait, daemon=True)
    process.start()
    yield
    done.set()
    process.join()


@pytest.mark.usefixtures("child")
def test_both_ends_hear_of_a_cut(ends: Ends) -> None:
    ends.cables.cut(ends.port)
    assert ends.gateway.recv(1) == b""
    assert ends.home.recv(1) == b""


@pytest.mark.usefixtures("child")
def test_an_end_hears_when_the_other_one_closes(ends: Ends) -> None:
    ends.gateway.shutdown(socket.SHUT_RDWR)
    assert ends.home.recv(1) == b""


@pytest.mark.usefixtures("child")
def test_no_end_of_a_half_open_connection_hears_of_the_other(ends: Ends) -> None:
    ends.cables.half_open(ends.port)
    ends.gateway.shutdown(socket.SHUT_RDWR)
    ends.home.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ends.home.recv(1)
