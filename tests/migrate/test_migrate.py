"""`amq migrate`: what is moved is all there, once, as it was; whatever dies meanwhile."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.protocols.openwire import table
from amq.protocols.openwire.primitives import decode_map, encode_map
from amq.protocols.openwire.table import Structure
from amq_migrate.openwire.queues import Looking, consuming, queue_of
from tests.activemq import USERS, ActiveMq, activemq
from tests.brokers import Broker, Brokers
from tests.certificates import Authority, needs_openssl
from tests.cli.amq_process import amq, on_terminal, one_line, running
from tests.openwire_client import facts, message, number_of, one_of_each, peer_of, receive, send
from tests.patience import DEADLINE_S
from tests.ports import free_port

MANY = 3000


def master(brokers: Brokers, name: str = "a", **options: object) -> tuple[Broker, str]:
    """A broker that serves all protocols at one port, and its URL for OpenWire."""
    broker = brokers.add(name, **options)
    broker.scheme = "auto"
    broker.start().wait_serving()
    return broker, f"tcp://127.0.0.1:{broker.port}"


@pytest.fixture
def new(tmp_path: Path) -> Iterator[str]:
    with Brokers(tmp_path, tmp_path / "new") as brokers:
        yield master(brokers)[1]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A new broker to which nothing comes."""
    directory = tmp_path_factory.mktemp("untouched")
    with Brokers(directory, directory / "new") as brokers:
        yield master(brokers)[1]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[str]:
    with Brokers(tmp_path, tmp_path / "old") as brokers:
        yield master(brokers)[1]


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMq]:
    with activemq(tmp_path_factory.mktemp("activemq")) as broker:
        yield broker


def migrate(old: str, new: str, *words: str, **options: Any) -> Any:
    done = amq("migrate", "--from", old, "--to", new, *words, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_each_type(old: str, new: str, queue: str) -> None:
    """What a program receives from the new broker is what it would have received from the old one."""
    with peer_of(old) as peer:
        send(peer, queue + ".twin", one_of_each())
        before = {number_of(each): facts(each) for each in receive(peer, queue + ".twin", len(one_of_each()))}
        send(peer, queue, one_of_each())
    done = migrate(old, new, queue)
    assert done["moved"] == len(one_of_each())
    with peer_of(new) as peer:
        after = receive(peer, queue, len(one_of_each()))
    assert {number_of(each): facts(each) for each in after} == before
    assert len(after) == len(before)
    assert migrate(old, new, queue)["moved"] == 0


def test_each_type_and_field(old: str, new: str) -> None:
    check_each_type(old, new, "orders")


def test_each_type_and_field_of_activemq(classic: ActiveMq, new: str) -> None:
    check_each_type(classic.url, new, "types")


def test_all_queues_and_patterns(old: str, new: str) -> None:
    with peer_of(old) as peer:
        for queue in ("a", "b.c", "b.d", "b.d.e"):
            send(peer, queue, [message(1), message(2)])
    looked = migrate(old, new, "--all", "--dry-run")
    assert looked == {"queues": {"a": 2, "b.c": 2, "b.d": 2, "b.d.e": 2}, "messages": 8}
    assert set(migrate(old, new, "b.*")["queues"]) == {"b.c", "b.d"}
    done = migrate(old, new, "--all")
    assert done["moved"] == 4
    assert {name: counts["moved"] for name, counts in done["queues"].items() if counts["moved"]} == {"a": 2, "b.d.e": 2}
    with peer_of(new) as peer:
        assert list(map(number_of, receive(peer, "b.d.e", 2))) == [1, 2]


@pytest.mark.deep
def test_all_queues_of_activemq(classic: ActiveMq, new: str) -> None:
    with peer_of(classic.url) as peer:
        for queue in ("all.a", "all.b"):
            send(peer, queue, [message(number) for number in range(700)])
    looked = migrate(classic.url, new, "--all", "--dry-run")["queues"]
    assert (looked["all.a"], looked["all.b"]) == (700, 700)
    done = migrate(classic.url, new, "all.>")
    assert {name: counts["moved"] for name, counts in done["queues"].items()} == {"all.a": 700, "all.b": 700}
    with peer_of(new) as peer:
        assert list(map(number_of, receive(peer, "all.b", 700))) == list(range(700))


@pytest.mark.deep
def test_what_is_not_persistent_or_was_to_be_delayed(classic: ActiveMq, new: str) -> None:
    """ActiveMQ without its scheduler delivers at once what asks for a delay: so the new broker must."""
    asked = encode_map({"AMQ_SCHEDULED_DELAY": 3_600_000, "kept": "yes"})
    with peer_of(classic.url) as peer:
        send(peer, "soft", [message(1, persistent=False), message(2, properties=asked)])
    done = migrate(classic.url, new, "soft")["queues"]["soft"]
    assert (done["moved"], done["made_persistent"], done["made_due"]) == (2, 1, 1)
    with peer_of(new) as peer:
        first, second = sorted(receive(peer, "soft", 2), key=number_of)
    assert first.get("persistent")
    assert decode_map(second.get("properties")) == {"kept": "yes"}


# -- whatever dies -----------------------------------------------------------------------------------------------------


def kill_and_repeat(old: str, new: str, queue: str, kills: int) -> None:
    """Kill the command again and again, at random moments; then let it end, and look for every message."""
    with peer_of(old) as peer:
        send(peer, queue, [message(number, persistent=True) for number in range(MANY)])
    rng = random.Random(7)
    targets = sorted(rng.sample(range(1, MANY // 4), kills))
    for target in targets:
        with running("migrate", "--from", old, "--to", new, queue, "--window", "200") as process:
            wait_for(new, queue, target)
            process.kill()
            process.wait()
    last = migrate(old, new, queue)["moved"]
    assert 0 < last < MANY, "every kill came too late, or all came too early"
    with peer_of(new) as peer:
        found = list(map(number_of, receive(peer, queue, MANY)))
    assert sorted(found) == list(range(MANY))
    assert migrate(old, new, queue, "--dry-run")["queues"][queue] == 0
    assert migrate(new, old, queue, "--dry-run")["queues"][queue] == 0


@pytest.mark.deep
def test_killed_at_any_moment(old: str, new: str) -> None:
    kill_and_repeat(old, new, "orders", 6)


@pytest.mark.deep
def test_killed_at_any_moment_with_activemq(classic: ActiveMq, new: str) -> None:
    kill_and_repeat(classic.url, new, "kills", 12)


@pytest.mark.deep
def test_the_new_master_dies_meanwhile(old: str, tmp_path: Path) -> None:
    """A slave takes over; the command goes on there, and what was on its way is compared by its ids."""
    with peer_of(old) as peer:
        send(peer, "orders", [message(number) for number in range(MANY)])
    with Brokers(tmp_path, tmp_path / "group") as group:
        first, first_url = master(group)
        second = group.add("b")
        second.scheme = "auto"
        second.start().wait_slave()
        second_url = f"tcp://127.0.0.1:{second.port}"
        url = f"failover:({first_url},{second_url})"
        with running("migrate", "--from", old, "--to", url, "orders", "--window", "50", "--json") as process:
            wait_for(first_url, "orders", 100)
            first.kill()
            output, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors
        assert json.loads(output)["reconnects"] >= 1
        with peer_of(second_url) as peer:
            found = list(map(number_of, receive(peer, "orders", MANY)))
    assert sorted(found) == list(range(MANY))


def wait_for(url: str, queue: str, count: int) -> None:
    """Until this many messages are on the queue."""
    until = time.monotonic() + DEADLINE_S
    with peer_of(url) as peer:
        looking = Looking(peer)
        while looking.count(queue, count) < count:
            assert time.monotonic() < until


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_message_that_the_new_broker_does_not_take_stays(old: str, tmp_path: Path) -> None:
    with Brokers(tmp_path, tmp_path / "small", maxFrameSize="64KB") as brokers:
        new = master(brokers)[1]
        large = message(2, table.BYTES_MESSAGE, content=bytes(2 << 20))
        with peer_of(old) as peer:
            send(peer, "orders", [message(1), large, message(3)])
        done = amq("migrate", "--from", old, "--to", new, "orders", "--json")
        assert done.returncode == 1
        told = json.loads(done.stdout)["queues"]["orders"]
        assert (told["moved"], told["remaining"]) == (2, 0)
        ((id, why),) = told["refused"].items()
        assert id == "ID:somewhere-41-1:1:1:7:2"
        assert "maxFrameSize" in why
        assert f"message {id} stays at the old broker" in one_line(done)
        with peer_of(old) as peer:
            assert number_of(receive(peer, "orders", 1)[0]) == 2


@pytest.mark.deep
def test_messages_that_others_hold_stay_and_are_told(classic: ActiveMq, new: str) -> None:
    with peer_of(classic.url) as peer:
        send(peer, "held", [message(number) for number in range(10)])
        with consuming(peer, 4999, queue_of("held"), 4):
            done = amq("migrate", "--from", classic.url, "--to", new, "held", "--idle", "0.5", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["queues"]["held"] == {
        "moved": 6,
        "bytes": 6 * 10,
        "made_persistent": 0,
        "made_due": 0,
        "remaining": 4,
        "refused": {},
    }
    assert "queue held has 1 consumers" in done.stderr
    assert "4 messages stay at the old broker" in done.stderr
    assert migrate(classic.url, new, "held")["moved"] == 4


@needs_openssl
def test_over_tls(new: str, authority: Authority, tmp_path: Path) -> None:
    """Also more than the kernel takes at once; a broker whose certificate is a stranger's gets nothing."""
    pair = authority.pair("server")
    with Brokers(tmp_path, tmp_path / "old", scheme="auto+ssl") as brokers:
        broker = brokers.master("a", certificate=pair.certificate, certificateKey=pair.key)
        url = f"ssl://localhost:{broker.port}"
        trusted = f"{url}?trust={authority.trust}"
        sent = [*one_of_each(), *(message(n, table.BYTES_MESSAGE, content=bytes(1 << 20)) for n in range(20, 28))]
        with peer_of(trusted) as peer:
            send(peer, "orders", sent)
        done = amq("migrate", "--from", url, "--to", new, "orders")
        assert (done.returncode, "trust" in one_line(done)) == (6, True)
        assert migrate(trusted, new, "orders")["moved"] == len(sent)
        done = amq("migrate", "--from", trusted.replace("ssl:", "tcp:").partition("?")[0], "--to", new, "orders")
        assert (done.returncode, "of TLS (ssl://)" in one_line(done)) == (6, True)
    with peer_of(new) as peer:
        came = receive(peer, "orders", len(sent))
    assert contents(came) == contents(sent)


def contents(messages: list[Structure]) -> dict[int, bytes | None]:
    return {number_of(found): found.get("content") for found in messages}


def test_unknown_queues_wrong_ports_and_nobody(old: str, new: str) -> None:
    done = amq("migrate", "--from", old, "--to", new, "nothing")
    assert (done.returncode, "the old broker has no queue nothing" in one_line(done)) == (1, True)
    done = amq("migrate", "--from", old, "--to", new, "--all")
    assert (done.returncode, "names no queues" in one_line(done)) == (1, True)
    done = amq("migrate", "--from", f"tcp://127.0.0.1:{free_port()}", "--to", new, "--all")
    assert (done.returncode, "Connection refused" in one_line(done)) == (6, True)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "in HTTP: that is the port of its web console"),
        (b"ERROR\ncontent-type:text/plain\n\nwhat?\0", "in STOMP: name the port for JMS clients"),
        (b"AMQP\0\1\0\0", "in AMQP"),
        (b"\x15\x03\x03\0\2\2\x46", "in TLS: write ssl://"),
        (b"220 mail.example.org", "in another protocol"),
        (b"", "without a word of OpenWire"),
    ],
)
def test_a_port_of_another_protocol_is_named(said: bytes, words: str, untouched: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(13)
                sock.sendall(said)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        done = amq("migrate", "--from", f"tcp://127.0.0.1:{server.getsockname()[1]}", "--to", untouched, "--all")
        thread.join()
    assert done.returncode == 6
    assert words in one_line(done)


@pytest.mark.deep
def test_logins_of_activemq(tmp_path: Path, new: str) -> None:
    with activemq(tmp_path, plugins=USERS, login=("admin", "s3cret")) as classic:
        done = amq("migrate", "--from", classic.url, "--to", new, "--all")
        assert "check the user and the password" in one_line(done)
        assert done.returncode == 7
        with peer_of(classic.url, "admin", "s3cret") as peer:
            send(peer, "orders", [message(1)])
        secret = tmp_path / "password"
        secret.write_text("s3cret\n")
        words = ("--user", "admin", "--password-file", str(secret))
        assert migrate(classic.url, new, "orders", *words)["moved"] == 1
        environment = {"AMQ_FROM_USER": "admin", "AMQ_FROM_PASSWORD": "s3cret"}
        assert migrate(classic.url, new, "orders", env=environment)["moved"] == 0
        done = amq("migrate", "--from", classic.url.replace("//", "//admin:wr0ng@"), "--to", new, "--all")
        assert done.returncode == 7
        assert "wr0ng" not in done.stderr


def test_words_that_cannot_be_meant(new: str) -> None:
    for words, why in (
        ((), "give the names of queues, or --all"),
        (("a", "--all"), "give the names of queues, or --all"),
        (("a", "--to", "stomp://a:61613"), "messages are moved over OpenWire"),
        (("a", "--to", "ssl://a:61617?trust=nowhere.pem"), "nowhere.pem"),
        (("a", "--to", "tcp://127.0.0.1:1"), "name the same broker"),
    ):
        done = amq("migrate", "--from", "tcp://127.0.0.1:1", "--to", new, *words)
        assert done.returncode == 2, words
        assert why in done.stderr


@pytest.mark.deep
def test_a_person_sees_a_table(old: str, new: str) -> None:
    with peer_of(old) as peer:
        send(peer, "orders", [message(1)])
    shown = on_terminal("migrate", "--from", old, "--to", new, "orders")
    assert "QUEUE   MOVED" in shown
    assert "1 message moved in" in shown
