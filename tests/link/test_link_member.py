"""A member opens its link port as master alone, says where it is, and cuts links with its mastership."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from amq.broker.sessions.links import Client
from amq.config.checks import contradictions
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, TransportError
from amq.core.message import Message
from amq.doors.clock import SystemClock
from amq.gateway.turn import GatewayTurn
from amq.link.framing import LinkError
from amq.link.link import Link
from amq.node.linking import link_secret
from amq.node.member import Member, Role
from amq.protocols.commands import Disconnect, Failure, Flow, Mode, Send, Settle, Subscribe
from amq.security.login import User
from tests.link.linking import SECRET
from tests.ports import free_port
from tests.service_world import PERIOD_S, Services, anybody, until


class Program:
    """A recipient without a protocol. Tokens are any objects."""

    def __init__(self) -> None:
        self.confirmed: list[object] = []
        self.failures: list[Failure] = []
        self.deliveries: list[tuple[Any, Message, int]] = []
        self.lost: list[AmqError] = []
        self.is_closed = False
        self.is_read = True

    def subscribed(self, command: Subscribe, session: int) -> object:  # noqa: ARG002
        return command.token

    def deliver(self, consumer: Any, message: Message, redelivered: int) -> None:
        self.deliveries.append((consumer.wire, message, redelivered))

    def deliver_all(self, consumer: Any, messages: list[Message]) -> None:
        for message in messages:
            self.deliver(consumer, message, 0)

    def confirm(self, receipt: object, outcome: str = "") -> None:  # noqa: ARG002
        self.confirmed.append(receipt)

    def confirm_all(self, receipts: list[object]) -> None:
        self.confirmed += receipts

    def fail(self, failure: Failure) -> None:
        self.failures.append(failure)

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def new_link(secret: bytes = SECRET) -> Link:
    loop = asyncio.get_running_loop()
    hub: Any = SimpleNamespace(clock=SystemClock(), loop=loop, turn=GatewayTurn(loop))
    return Link(hub, secret)


def opened(link: Link, program: Any, user: str = "alice", owner: str = "", client_id: str = "", **more: Any) -> Any:
    connection = link.open(program, Client(User(user), client_id), owner or f"{id(program)}-1.", "stomp", **more)
    connection.lost = lambda _, error: program.lost.append(error)
    return connection


def secret_file(path: Path, mode: int = 0o600) -> str:
    file = path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(mode)
    return str(file)


def play(path: Path, test: Callable[[Member], Awaitable[None]], **config: Any) -> None:
    """Run `test` with a master that has a link port."""

    async def main() -> None:
        services = Services(path)
        try:
            await test(await master(services, path, **config))
        finally:
            await services.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def master(services: Services, path: Path, **config: Any) -> Member:
    made = BrokerConfig(
        name="b1",
        store=str(services.store),
        transports=(f"stomp://127.0.0.1:{free_port()}",),
        lock_keep_alive_period_s=PERIOD_S,
        link_listen="tcp://127.0.0.1:0",
        link_secret_file=secret_file(path),
        **config,
    )
    member = Member(made, anybody)
    services.made.append((member, 0))
    await member.start()
    assert await member.wait_for(Role.MASTER) is Role.MASTER, member.failure
    return member


def test_a_gateway_finds_the_master_and_is_served(tmp_path: Path) -> None:
    async def test(member: Member) -> None:
        address = member.facts()["link"]
        assert address.startswith("tcp://127.0.0.1:")
        link, program = new_link(), Program()
        connection = opened(link, program)
        token = object()
        connection.handle([Send(Message("queue://a", b"early"), token)])
        home = await link.connect(address)
        assert home.broker == "b1"
        await until(lambda: program.confirmed == [token])
        connection.handle([Subscribe("c", "queue://a", Mode(True), Flow(10), receipt="s", token="wire")])
        await until(lambda: len(program.deliveries) == 1 and "s" in program.confirmed)
        wire, message, redelivered = program.deliveries[0]
        assert (wire, message.body, redelivered) == ("wire", b"early", 0)
        connection.handle([Settle(message.seq, "c", "acked")])
        await until(lambda: "acked" in program.confirmed)
        assert member.master is not None
        (shown,) = [each for each in member.master.connections.values() if each.user == "alice"]
        assert shown.codec is not None
        assert shown.codec.name == "stomp"
        connection.close()
        await until(lambda: not link.connections)
        link.close()
        await until(lambda: not member.master.connections)

    play(tmp_path, test)


def test_limits_and_rights_of_users_hold_over_a_link(tmp_path: Path) -> None:
    async def test(member: Member) -> None:
        link = new_link()
        await link.connect(member.facts()["link"])
        first, second = Program(), Program()
        opened(link, first)
        opened(link, second)
        await until(lambda: bool(second.failures))
        assert getattr(second.failures[0].error, "code", "") == "TOO_MANY"
        assert "maxConnectionsPerUser" in str(second.failures[0].error)
        await until(lambda: len(link.connections) == 1)
        link.close()

    play(tmp_path, test, max_connections_per_user=1)


def test_a_gateway_cannot_name_a_client_as_the_broker_names_its_own(tmp_path: Path) -> None:
    async def test(member: Member) -> None:
        link, program, other = new_link(), Program(), Program()
        await link.connect(member.facts()["link"])
        assert member.master is not None
        opened(link, program, owner=f"{member.master.epoch}-1.")
        await until(lambda: bool(program.failures))
        newer = Program()
        opened(link, other, owner="77-1.")
        opened(link, newer, owner="77-1.")  # as on a link that the home has not found broken
        await until(lambda: other.is_closed)
        assert not newer.is_closed
        link.close()

    play(tmp_path, test)


def test_a_client_that_left_leaves_its_client_id_to_the_next_one(tmp_path: Path) -> None:
    """The commands of both come in one piece."""

    async def test(member: Member) -> None:
        link, programs = new_link(), [Program(), Program(), Program()]
        await link.connect(member.facts()["link"])
        for number, program in enumerate(programs):
            client = Client(User("alice"), "jms", f"connection {number}", exclusive=True)
            connection = link.open(program, client, f"9-{number + 1}.", "stomp")
            connection.handle([Send(Message("queue://a", b"x"), "sent"), Disconnect("bye")])
        await until(lambda: all(program.is_closed for program in programs))
        assert [program.confirmed for program in programs] == [["sent", "bye"]] * 3
        assert not any(program.failures for program in programs)

    play(tmp_path, test)


def test_a_hand_over_ends_links_after_the_last_answer(tmp_path: Path) -> None:
    async def test(member: Member) -> None:
        link, program = new_link(), Program()
        await link.connect(member.facts()["link"])
        connection = opened(link, program)
        connection.handle([Send(Message("queue://a", b"x"), "r")])
        await until(lambda: program.confirmed == ["r"])
        await member.stop()
        await until(lambda: bool(program.lost))
        assert link.is_lost
        assert not program.failures
        assert not program.is_closed
        with pytest.raises(LinkError):
            opened(link, Program())

    play(tmp_path, test)


def test_a_fence_cuts_links(tmp_path: Path) -> None:
    async def test(member: Member) -> None:
        link, program = new_link(), Program()
        await link.connect(member.facts()["link"])
        opened(link, program)
        assert member.master is not None
        await until(lambda: bool(member.master and member.master.connections))
        member.cut()
        await until(lambda: bool(program.lost))
        await until(lambda: not (member.master and member.master.connections))

    play(tmp_path, test)


def test_a_link_with_a_wrong_secret_is_refused_and_may_try_again(tmp_path: Path) -> None:
    async def test(member: Member) -> None:
        wrong = new_link(b"another secret, as long")
        with pytest.raises(LinkError):
            await wrong.connect(member.facts()["link"])
        assert not wrong.is_lost
        assert member.master is not None
        assert not member.master.connections
        with pytest.raises(OSError, match="onnect"):
            await wrong.connect(f"tcp://127.0.0.1:{free_port()}")

    play(tmp_path, test)


def test_a_secret_that_others_know_opens_no_port(tmp_path: Path) -> None:
    assert link_secret(secret_file(tmp_path)) == SECRET
    with pytest.raises(TransportError, match="chmod 600"):
        link_secret(secret_file(tmp_path, 0o640))
    short = tmp_path / "short"
    short.write_bytes(b"short\n")
    short.chmod(0o600)
    with pytest.raises(TransportError, match="has 5 bytes"):
        link_secret(str(short))
    with pytest.raises(TransportError, match="No such file"):
        link_secret(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("listen", "secret", "told"),
    [
        ("tcp://127.0.0.1:0", "", "linkSecretFile"),
        ("stomp://127.0.0.1:0", "s", "neither tcp"),
        ("tcp://0.0.0.0:7", "s", "without TLS"),
        ("ssl://127.0.0.1:0", "s", "certificate"),
        ("nonsense", "s", "linkListen"),
        ("tcp://127.0.0.1:0", "s", ""),
    ],
)
def test_contradictions_of_the_options_are_told(listen: str, secret: str, told: str) -> None:
    config = BrokerConfig(link_listen=listen, link_secret_file=secret)
    found = [each for each in contradictions(config) if "linkListen" in each]
    assert told in "".join(found)
    assert bool(found) == bool(told)
