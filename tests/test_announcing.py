"""Clients learn where the group is: what brokers publish, what the master makes of it, and whom it tells when."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import amq.node.contender
import amq.node.group
from amq.broker.events import Events, GroupChanged
from amq.config import load
from amq.config.addresses import LIST_CHARS_MAX, URLS_MAX, bounded
from amq.config.group import PUBLISHED_BYTES_MAX
from amq.config.option import ADDRESSES_MAX
from amq.config.transport_url import ADDRESS_CHARS_MAX
from amq.doors.threads import SystemThreads
from amq.node.group import MEET_S, Group
from amq.node.member import Role
from amq.protocols.openwire.names import own_url
from amq.protocols.stomp.frame import Frame, FrameLimits, FrameReader
from amq.store.files.board import FileBoard
from amq.store.files.election import FileElection
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner
from amq.store.presence import RECORD_BYTES, Presence, read_presence
from amq.transports.announcer import STEP, Announcer
from tests.fakes import FakeClock, FakeHost
from tests.patience import DEADLINE_S
from tests.service_world import services, until
from tests.transports.served import Peer, Served, frame, serve

GROUP = ("stomp://a:1", "stomp://b:2", "mqtt://b:3")


# -- the list ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text("abc:/", min_size=1, max_size=ADDRESS_CHARS_MAX), max_size=300))
def test_a_list_is_bounded_and_keeps_the_first(urls: list[str]) -> None:
    kept = bounded(urls)
    assert len(kept) <= URLS_MAX
    assert len(",".join(kept)) <= LIST_CHARS_MAX
    assert list(kept) == list(dict.fromkeys(urls))[: len(kept)]
    assert bounded(kept) == kept


class Store:
    """A store with other brokers on it, as the group of broker `me`, on host `alpha`, sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.stack = ExitStack()
        self.group = self.group_of()

    def group_of(self, *overrides: str) -> Group:
        config = load(overrides=overrides, store=str(self.path), name="me")
        vfs, host = SystemVfs(), FakeHost()
        election = FileElection(vfs, config.store)
        return Group(FileBoard(vfs, config.store), election, self.clock, host, SystemThreads(), config, "me", None)

    def other(self, name: str, url: str = "stomp://a:1", host: str = "alpha", **facts: Any) -> Presence:
        owner = Owner.make(
            FakeHost(host_name=host, boot="boot-1" if host == "alpha" else "boot-2", own_pid=7),
            name=name,
            uuid=name,
            transport_urls=(url,),
            lock_keep_alive_period_s=1.0,
        )
        presence = Presence.open(FileBoard(SystemVfs(), str(self.path)), owner, "slave", facts)
        self.stack.callback(presence.close)
        return presence

    def mine(self, *overrides: str, urls: tuple[str, ...] = ()) -> list[str]:
        found = self.group_of(*overrides).facts(urls=urls)["addresses"]
        assert isinstance(found, list)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.stack.close()


def test_a_broker_publishes_where_clients_reach_it(store: Store) -> None:
    assert store.mine("transports=stomp://0.0.0.0:7,stomp://h:8") == ["stomp://alpha:7", "stomp://h:8"]
    assert store.mine("transports=stomp://0.0.0.0:0") == []  # a slave does not know which port it will have
    assert store.mine("transports=stomp://0.0.0.0:0", urls=("stomp://alpha:9",)) == ["stomp://alpha:9"]
    behind_nat = ("transports=stomp://0.0.0.0:7", "advertisedTransports=stomp://public.example.com:7001")
    assert store.mine(*behind_nat) == ["stomp://public.example.com:7001"]
    assert store.mine(*behind_nat, urls=("stomp://alpha:7",)) == ["stomp://public.example.com:7001"]
    many = ",".join(f"stomp://127.0.0.1:{port}" for port in range(1, 100))
    assert len(store.mine(f"transports={many}")) == ADDRESSES_MAX


def test_the_longest_facts_fit_into_the_file(store: Store) -> None:
    host = ".".join(["h" * 58] * 4)
    longest = [f"stomp://{number}{host[1:]}" for number in range(ADDRESSES_MAX)]
    published = store.group_of(f"advertisedTransports={','.join(longest)}").facts()
    published["options"] = {"digest": "0", "values": {"x": "y" * (PUBLISHED_BYTES_MAX - 20)}}
    published["cannot_listen"] = "why " * 125
    store.other("b", **published).close()
    store.other("b", **published)
    assert (store.path / "brokers" / "b.json").stat().st_size <= RECORD_BYTES
    (found,) = read_presence(FileBoard(SystemVfs(), str(store.path)))
    assert found.facts["addresses"] == published["addresses"]
    assert [len(url) > 240 for url in found.facts["addresses"]] == [True] * ADDRESSES_MAX


def test_the_others_are_listed_by_priority_and_name(store: Store) -> None:
    store.other("c", addresses=["stomp://c:1", "stomp://c:2"])
    store.other("b", addresses=["stomp://b:1"])
    store.other("d", addresses=["stomp://d:1"], priority=5)
    assert store.group.neighbours() == ("stomp://d:1", "stomp://b:1", "stomp://c:1", "stomp://c:2")


def test_a_broker_that_does_not_say_has_no_address(store: Store) -> None:
    """Version 0.1 does not say: it could not take over from a master that tells its clients. Nothing is guessed."""
    store.other("b", url="stomp://0.0.0.0:7", host="beta")
    store.other("c", url="stomp://0.0.0.0:0", addresses=[])
    store.other("d", addresses=["stomp://0.0.0.0:7"], host="beta")
    assert store.group.neighbours() == ("stomp://beta:7",)


def test_a_loopback_address_counts_on_its_own_host(store: Store) -> None:
    store.other("b", addresses=["stomp://127.0.0.1:7"])
    store.other("c", addresses=["stomp://127.0.0.1:8"], host="beta")
    store.other("d", addresses=["stomp://localhost:9", "stomp://d:9"], host="beta")
    assert store.group.neighbours() == ("stomp://127.0.0.1:7", "stomp://d:9")


@pytest.mark.parametrize("said", [None, 7, "stomp://x:1", [7, None, "", "x", "stomp://x:0", "later://x:1"], [[]] * 999])
def test_nonsense_in_a_file_is_no_address(store: Store, said: object) -> None:
    store.other("b", url="nonsense", addresses=said, priority="high")
    store.other("c", addresses=["stomp://c:1"])
    assert store.group.neighbours() == ("stomp://c:1",)


def test_the_master_looks_now_and_then(store: Store) -> None:
    store.other("b", addresses=["stomp://b:1"])
    assert store.group.neighbours() == ("stomp://b:1",)
    store.other("c", addresses=["stomp://c:1"])
    store.clock.advance(MEET_S - 1)
    assert store.group.neighbours(MEET_S) == ("stomp://b:1",)
    store.clock.advance(1)
    assert store.group.neighbours(MEET_S) == ("stomp://b:1", "stomp://c:1")


def test_files_that_cannot_be_read_change_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.other("b", addresses=["stomp://b:1"])
    assert store.group.neighbours() == ("stomp://b:1",)

    def fail(*_: object) -> None:
        raise OSError(5, "the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(amq.node.group, "read_presence", fail)
        assert store.group.neighbours() == ("stomp://b:1",)
    store.stack.close()
    assert store.group.neighbours() == ()


def test_a_broker_that_tells_nobody_does_not_look(store: Store) -> None:
    store.other("b", addresses=["stomp://b:1"])
    assert store.group_of("updateClusterClients=false").neighbours() == ()


# -- who is told -------------------------------------------------------------------------------------------------------


class Counted:
    """A connection, and the rounds of the event loop in which it was told."""

    def __init__(self) -> None:
        self.told = 0

    def tell_brokers(self) -> None:
        self.told += 1


async def test_thousands_are_told_in_steps() -> None:
    events = Events()
    heard: list[GroupChanged] = []
    events.listen(GroupChanged, heard.append)
    announcer = Announcer(asyncio.get_running_loop(), events)
    clients = [Counted() for _ in range(2 * STEP + 1)]

    def told() -> int:
        return sum(client.told for client in clients)

    announcer.change(["stomp://a:1"], clients)
    counts = [told()]
    for _ in range(4):
        await asyncio.sleep(0)
        counts.append(told())
    assert counts == [0, STEP, 2 * STEP, 2 * STEP + 1, 2 * STEP + 1]
    announcer.change(["stomp://a:1"], clients)  # the same
    await asyncio.sleep(0)
    assert told() == len(clients)
    announcer.change(["stomp://b:1"], clients)
    await asyncio.sleep(0)
    announcer.change(["stomp://c:1"], clients)  # meanwhile: everybody is told anew, by one walk
    for _ in range(9):
        await asyncio.sleep(0)
    assert [client.told for client in clients] == [3] * STEP + [2] * (STEP + 1)
    assert [event.brokers for event in heard] == [("stomp://a:1",), ("stomp://b:1",), ("stomp://c:1",)]
    announcer.change(["stomp://d:1"], clients)
    announcer.stop()
    await asyncio.sleep(0)
    assert told() == 3 * len(clients) - STEP - 1


async def test_a_client_of_another_host_hears_of_no_loopback_address() -> None:
    announcer = Announcer(asyncio.get_running_loop(), Events())
    assert announcer.brokers(loopback=True) == ()
    announcer.change(["stomp://127.0.0.1:1", "stomp://b:2", "stomp://localhost:3"], ())
    assert announcer.brokers(loopback=True) == ("stomp://127.0.0.1:1", "stomp://b:2", "stomp://localhost:3")
    assert announcer.brokers(loopback=False) == ("stomp://b:2",)


# -- what STOMP says ---------------------------------------------------------------------------------------------------


def connect(version: str = "1.2", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return frame("CONNECT", {"accept-version": version, "host": "x", **named})


def heard(peer: Peer, version: str = "1.2") -> list[Frame]:
    """All frames that the client has got."""
    peer.read()
    return FrameReader(FrameLimits(), version).feed(peer.said)


def test_connected_tells_where_the_group_is(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        alone = await served.connect(connect())
        assert "brokers" not in heard(alone)[0].headers
        served.brokers = GROUP
        urls = "stomp://a:1,stomp://b:2"
        for version, expected in (("1.0", None), ("1.1", urls), ("1.2", urls)):
            (connected,) = heard(await served.connect(connect(version)), version)
            assert connected.command == "CONNECTED"
            assert connected.headers.get("brokers") == expected

    serve(tmp_path, test)


async def test_a_client_of_tls_hears_of_addresses_with_tls_only() -> None:
    announcer = Announcer(asyncio.get_running_loop(), Events())
    both = ("auto://a:1", "auto+ssl://a:2", "stomp+ssl://127.0.0.1:3")
    announcer.change(both, [])
    assert announcer.brokers(True, tls=False) == both[:1]
    assert announcer.brokers(True, tls=True) == both[1:]
    assert announcer.brokers(False, tls=True) == both[1:2]


def test_a_port_for_all_protocols_is_told_in_the_form_that_a_client_writes(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.brokers = ("auto://a:1", "openwire://a:2", "stomp://b:3")
        (connected,) = heard(await served.connect(connect()))
        assert connected.headers["brokers"] == "stomp://a:1,stomp://b:3"

    serve(tmp_path, test)
    assert [own_url(f"{scheme}://a:1") for scheme in ("auto", "auto+ssl", "ssl", "stomp+ssl")] == [
        "tcp://a:1",
        "ssl://a:1",
        "ssl://a:1",
        None,
    ]


def test_a_loopback_address_is_told_to_clients_of_this_host(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        served.brokers = ("stomp://127.0.0.1:1", "stomp://b:2")
        (near,) = heard(await served.connect(connect(), tcp=True))
        assert near.headers["brokers"] == "stomp://127.0.0.1:1,stomp://b:2"
        (unknown,) = heard(await served.connect(connect()))  # a socket pair: it has no address
        assert unknown.headers["brokers"] == "stomp://b:2"

    serve(tmp_path, test)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_who_asked_is_told_of_a_change_by_a_receipt(tmp_path: Path, version: str) -> None:
    async def test(served: Served) -> None:
        asked = await served.connect(connect(version, amq_brokers_receipt="where:is"))
        others = [await served.connect(connect(version)), await served.connect(connect("1.0", amq_brokers_receipt="x"))]
        stranger = await served.connect(b"")
        served.brokers = GROUP
        for connection in list(served.connections.values()):
            connection.tell_brokers()
        await served.rest()
        _, told = heard(asked, version)
        assert told == Frame("RECEIPT", {"receipt-id": "where:is", "brokers": "stomp://a:1,stomp://b:2"})
        assert [len(heard(other)) for other in [*others, stranger]] == [1, 1, 0]
        served.brokers = ()
        asked.connection.tell_brokers()
        await served.rest()
        assert len(heard(asked, version)) == 2

    serve(tmp_path, test)


def test_an_id_of_any_length_is_not_kept(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        (refused,) = heard(await served.connect(connect(amq_brokers_receipt="x" * 65)))
        assert (refused.command, refused.headers["code"]) == ("ERROR", "HEADER_INVALID")

    serve(tmp_path, test)


def test_a_client_that_does_not_read_is_told_once_it_has_read(tmp_path: Path) -> None:
    """However often the group changes meanwhile, nothing gathers for it."""

    async def test(served: Served) -> None:
        client = await served.connect(connect(amq_brokers_receipt="where"), tcp=True)
        subscribe = {"id": "s", "destination": "/queue/q", "ack": "client-individual"}
        await served.say(client, frame("SUBSCRIBE", subscribe))
        producer = await served.connect(connect())
        send = frame("SEND", {"destination": "/queue/q"}, b"x" * 1000)
        await served.say(producer, send * 3000)  # more than the sockets take
        connection = client.connection
        await served.until(lambda: connection.socket.is_full, "a full socket")
        before = connection.output_bytes
        for number in range(1000):
            served.brokers = (f"stomp://b{number}:1",)
            connection.tell_brokers()
        assert connection.output_bytes == before
        await served.until(lambda: client.read() + b"." and client.said.count(b"stomp\\c//"), "the news")
        told = [each for each in heard(client) if each.command == "RECEIPT"]
        assert [each.headers["brokers"] for each in told] == ["stomp://b999:1"]

    serve(tmp_path, test)


# -- a real group ------------------------------------------------------------------------------------------------------


async def test_a_client_is_told_who_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amq.node.contender, "MEET_S", 0.02)
    async with services(tmp_path) as world:
        _, port = await world.master("a")
        urls = [f"stomp://127.0.0.1:{port}"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(connect(amq_brokers_receipt="where"))
        frames = FrameReader(FrameLimits(), "1.2")

        async def hear() -> list[str]:
            while not (found := frames.feed(await asyncio.wait_for(reader.read(4096), DEADLINE_S))):
                pass
            assert len(found) == 1
            return found[0].headers["brokers"].split(",")

        assert await hear() == urls
        second, other = await world.start("b")
        assert await hear() == [*urls, f"stomp://127.0.0.1:{other}"]
        said = json.loads((world.store / "brokers" / "b.json").read_bytes().split(b"\n")[0])["body"]
        assert said["facts"]["addresses"] == [f"stomp://127.0.0.1:{other}"]
        await second.stop()
        assert await hear() == urls
        writer.close()


async def test_a_new_master_tells_from_its_first_client_on(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        first, _ = await world.master("a")
        slaves = dict([await world.start("b"), await world.start("c")])
        await until(lambda: all(each.role is Role.SLAVE for each in slaves))
        await first.stop()
        await until(lambda: any(each.role is Role.MASTER for each in slaves))
        urls = [f"stomp://127.0.0.1:{slaves[each]}" for each in sorted(slaves, key=lambda each: each.role.value)]
        master, _slave = urls
        reader, writer = await asyncio.open_connection("127.0.0.1", int(master.rpartition(":")[2]))
        writer.write(connect())
        (connected,) = FrameReader(FrameLimits(), "1.2").feed(await asyncio.wait_for(reader.read(4096), DEADLINE_S))
        assert connected.headers["brokers"] == ",".join(urls)
        writer.close()


async def test_options_that_change_while_clients_are_served(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        service, port = await world.master("a")
        told: list[GroupChanged] = []
        service.events.listen(GroupChanged, told.append)

        async def connected() -> str | None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(connect())
            (found,) = FrameReader(FrameLimits(), "1.2").feed(await asyncio.wait_for(reader.read(4096), DEADLINE_S))
            writer.close()
            return found.headers.get("brokers")

        assert await connected() == f"stomp://127.0.0.1:{port}"
        config = service.config
        service.reconfigure(dataclasses.replace(config, advertised_transports=("stomp://public:1",)))
        assert await connected() == "stomp://public:1"
        service.reconfigure(dataclasses.replace(config, update_cluster_clients=False))
        assert await connected() is None
        service.reconfigure(config)
        assert await connected() == f"stomp://127.0.0.1:{port}"
        assert [event.brokers for event in told] == [("stomp://public:1",), (), (f"stomp://127.0.0.1:{port}",)]
