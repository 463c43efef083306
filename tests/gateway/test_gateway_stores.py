"""A gateway and the masters of two stores in this process: one client at one port uses both, also after a takeover."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from amq.cluster.directory import Cluster
from amq.config.schema import BrokerConfig
from amq.core.destination import QUEUE_SCHEME
from amq.gateway import lookout
from amq.gateway.process import Gateway
from amq.node.member import Role
from amq.node.node import Node
from amq.node.service import PLAIN, Source
from tests.certificates import Authority, needs_openssl
from tests.patience import DEADLINE_S
from tests.service_world import Client, until

STORES = ("s1", "s2")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=a:1,other=b"}


class World:
    """A node with a member for each store, each a `Node` of its own, and a gateway at `port`."""

    def __init__(self, folder: Path, tls: bool, days: int = 60) -> None:
        """`days` = how long the certificate of the masters is valid. `trust` = the CA that the gateway trusts."""
        self.cluster = Cluster.create(str(folder / "c"), dict.fromkeys(STORES, ""))
        self._options: dict[str, Any] = {"name": "a", "management_socket": "none", "lock_acquire_sleep_interval_s": 0.1}
        self.trust = folder / "trust.pem"
        if tls:
            authority = Authority(folder / "ca")
            pair = authority.pair("node", days)
            self.trust.write_bytes(authority.trust.read_bytes())
            self._options |= {
                "certificate": str(pair.certificate),
                "certificate_key": str(pair.key),
                "trust": str(authority.trust),
            }
        self._scheme = "ssl" if tls else "tcp"
        self.members: dict[str, Node] = {}
        own = self._options | ({"trust": str(self.trust)} if tls else {})
        self._config = BrokerConfig(store=self.cluster.directory, transports=("auto://127.0.0.1:0",), **own)
        self.gateway, self.listener = self.new_gateway()
        self.clients: list[Client] = []

    def new_gateway(self) -> tuple[Gateway, socket.socket]:
        """With its socket. Start it, and stop it."""
        listener = socket.create_server(("127.0.0.1", 0))
        return Gateway(self._config, Source(lambda: self._config), PLAIN, self.cluster, [[listener]]), listener

    async def serve(self, store: str) -> None:
        """A new master of `store`."""
        config = BrokerConfig(
            store=self.cluster.location(store),
            transports=("stomp://127.0.0.1:0",),
            link_listen=f"{self._scheme}://127.0.0.1:0",
            link_secret_file=f"{self.cluster.directory}/secret",
            **self._options,
        )
        self.members[store] = node = Node([config])
        await node.start()
        (member,) = node.members.values()
        assert await member.wait_for(Role.MASTER) is Role.MASTER, member.failure

    async def connect(self) -> Client:
        self.clients.append(await Client.connect(self.listener.getsockname()[1]))
        return self.clients[-1]

    def queue_in(self, store: str) -> str:
        home_of = self.gateway.ways.placement.home_of
        return next(f"/queue/{name}" for n in count() if home_of(QUEUE_SCHEME + (name := f"q{n}")) == store)

    async def close(self) -> None:
        await self.gateway.stop()
        for node in self.members.values():
            await node.stop()
        for client in self.clients:
            await client.close()
        self.listener.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "WANTED_LOOK_S", 0.02)


def run(folder: Path, story: Callable[[World], Coroutine[Any, Any, None]], tls: bool = False, days: int = 60) -> None:
    async def whole() -> None:
        world = World(folder, tls, days)
        await world.gateway.start()
        try:
            for store in STORES:
                await world.serve(store)
            await story(world)
        finally:
            await world.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(whole(), DEADLINE_S))


async def use_both(world: World) -> None:
    client = await world.connect()
    for store in STORES:
        sent = ("destination", world.queue_in(store)), ("receipt", store), *TRACE.items()
        await client.send("SEND", *sent, body=store.encode())
        assert (await client.receive()).headers["receipt-id"] == store
    for number, store in enumerate(STORES):
        words = ("id", str(number)), ("destination", world.queue_in(store)), ("ack", "client-individual")
        await client.send("SUBSCRIBE", *words)
        message = await client.receive()
        assert (message.command, message.body) == ("MESSAGE", store.encode())
        assert message.headers.items() >= TRACE.items()
        await client.ack(message)
    assert sorted(world.gateway.ways.links.linked) == sorted(STORES)


def test_one_client_uses_the_queues_of_both_stores(tmp_path: Path) -> None:
    run(tmp_path, use_both)


@needs_openssl
def test_links_speak_tls_where_the_node_has_a_certificate(tmp_path: Path) -> None:
    run(tmp_path, use_both, tls=True)


async def meet_refusal(world: World, cause: str, cure: str) -> Client:
    """A client that waits for store s1, whose master and the gateway do not accept each other."""
    client = await world.connect()
    with capture_logs() as lines:
        await client.send("SEND", ("destination", world.queue_in("s1")), ("receipt", "waits"), body=b"one")
        await until(lambda: world.gateway.ways.links.refused == ["s1"])
    (reason,) = [each["reason"] for each in lines if each["event"] == "the master refuses links of this node"]
    assert cause in reason
    assert cure in reason
    return client


async def see_cured(world: World, client: Client) -> None:
    assert (await client.receive()).headers["receipt-id"] == "waits"
    assert world.gateway.ways.links.refused == []


@needs_openssl
@pytest.mark.deep
def test_a_master_with_a_certificate_of_another_ca_is_refused_until_its_ca_is_trusted(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        good = world.trust.read_bytes()
        world.trust.write_bytes(Authority(tmp_path / "another").trust.read_bytes())
        client = await meet_refusal(world, "certificate of ssl://", "set trust of this node")
        world.trust.write_bytes(good)
        await see_cured(world, client)

    run(tmp_path, story, tls=True)


@needs_openssl
@pytest.mark.deep
def test_a_master_with_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await meet_refusal(world, "has expired", "renew it")

    run(tmp_path, story, tls=True, days=-1)


def test_a_master_with_another_secret_is_refused_and_keeps_nobody_from_other_stores(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        secret = Path(world.cluster.directory) / "secret"
        good = secret.read_text()
        secret.write_text(good[::-1])
        await world.members.pop("s1").stop()
        await world.serve("s1")
        client = await meet_refusal(world, "has another secret", "give all nodes of the cluster the same")
        await client.store(b"meanwhile", name=world.queue_in("s2"))
        secret.write_text(good)
        await world.members.pop("s1").stop()
        await world.serve("s1")
        await see_cured(world, client)

    run(tmp_path, story)


def test_a_takeover_costs_a_client_a_pause_and_not_its_connection(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        client = await world.connect()
        queues = [world.queue_in(store) for store in STORES]
        for queue in queues:
            await client.store(b"before", name=queue)
        await world.members.pop("s1").stop()
        await until(lambda: world.gateway.ways.links.linked == ["s2"])
        await client.store(b"meanwhile", name=queues[1])
        await client.send("SEND", ("destination", queues[0]), ("receipt", "waits"), body=b"after")
        await until(lambda: world.gateway.ways.links.waiting == ["s1"])
        await client.store(b"also meanwhile", name=queues[1])
        await world.serve("s1")
        assert (await client.receive()).headers["receipt-id"] == "waits"

    run(tmp_path, story)


def test_a_client_that_is_busy_in_a_store_keeps_its_connection_through_a_hand_over(tmp_path: Path) -> None:
    """It has messages that are unsettled and some that are unanswered, all without ids. Those whose acknowledgement was
    confirmed never come again, and the others do, as the same messages, marked."""

    async def story(world: World) -> None:
        producer, consumer = await world.connect(), await world.connect()
        queue = world.queue_in("s1")
        await consumer.send("SUBSCRIBE", ("id", "0"), ("destination", queue), ("ack", "client-individual"))
        await producer.store(b"over", name=queue)
        await consumer.ack(await consumer.receive())
        await producer.store(b"first", name=queue)
        held = await consumer.receive()
        stopping = asyncio.ensure_future(world.members.pop("s1").stop())
        sent = 0
        while "s1" not in world.gateway.ways.links.waiting:
            if sent < 100:  # fewer than the consumer may have unsettled
                sent += 1
                await producer.send("SEND", ("destination", queue), ("receipt", str(sent)), body=b"%d" % sent)
            await asyncio.sleep(0)
        await stopping
        await world.serve("s1")
        receipts = [(await producer.receive()).headers["receipt-id"] for _ in range(sent)]
        assert receipts == [str(n + 1) for n in range(sent)]
        frames = [held]
        while [each.body for each in frames].count(b"first") < 2 or len({each.body for each in frames}) <= sent:
            frames.append(await consumer.receive())
        assert b"over" not in {each.body for each in frames}
        before: dict[str, bytes] = {}
        for each in frames:
            assert "redelivered" in each.headers or each.headers["message-id"] not in before
            assert before.setdefault(each.headers["message-id"], each.body) == each.body
        assert len(before) == sent + 1, "none was stored twice"
        for _ in range(2):  # the delivery before, and the one behind
            await consumer.ack(held)

    run(tmp_path, story)
