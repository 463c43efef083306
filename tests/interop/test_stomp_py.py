"""stomp.py, a stock client, works unmodified: every version, ack mode and frame, and with several hosts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("stomp")

from brokers import SERVING, Broker, Brokers
from stock import VERSIONS, Stock
from stomp.exception import ConnectFailedException  # type: ignore[import-untyped]

from amq.security.users_edit import add_user

versions = pytest.mark.parametrize("version", VERSIONS)
UNICODE = "Grüße, 世界 🐍"


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    return brokers.master("a", maximumRedeliveries=2)


def bodies(stock: Stock) -> list[str]:
    return [frame.body for frame in stock.listener.messages]


@versions
def test_send_and_receive(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock:
        stock.subscribe()
        stock.send("hello")
        stock.send(UNICODE)
        stock.listener.wait_messages(2)
        assert bodies(stock) == ["hello", UNICODE]
        assert stock.listener.connects[0].headers.get("version", "1.0") == version
    assert stock.listener.errors == []


@pytest.mark.deep
@versions
def test_headers_come_back_as_they_were_sent(broker: Broker, version: str) -> None:
    headers = {"plain": "x", "unicode": UNICODE, "correlation-id": "42", "reply-to": "/queue/b", "priority": "7"}
    if version != "1.0":
        headers |= {"escaped": "a:b\\c\nd"}  # of names stomp.py escapes nothing
    with Stock([broker], version) as stock:
        stock.subscribe()
        stock.send("x", headers=headers, content_type="text/plain")
        (message,) = stock.listener.wait_messages(1)
        assert {key: message.headers.get(key) for key in headers} == headers
        assert message.headers["content-type"] == "text/plain"
        assert message.headers["destination"] == "/queue/a"


@pytest.mark.deep
@versions
def test_bytes_of_a_mebibyte(broker: Broker, version: str) -> None:
    body = bytes(range(256)) * 4096
    with Stock([broker], version, auto_decode=False) as stock:
        stock.subscribe()
        stock.send(body)
        (message,) = stock.listener.wait_messages(1)
        assert message.body == body


@pytest.mark.deep
@versions
def test_client_acknowledgement_is_cumulative(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock:
        for number in range(4):
            stock.send(str(number))
        stock.subscribe(ack="client")
        stock.ack(stock.listener.wait_messages(4)[1])
    with Stock([broker], version) as stock:
        stock.subscribe()
        stock.listener.wait_messages(2)
        assert bodies(stock) == ["2", "3"]
        assert all(frame.headers["redelivered"] == "true" for frame in stock.listener.messages)


@pytest.mark.deep
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_individual_acknowledgement(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock:
        for number in range(4):
            stock.send(str(number))
        stock.subscribe(ack="client-individual")
        messages = stock.listener.wait_messages(4)
        stock.ack(messages[1])
        stock.ack(messages[3])
    with Stock([broker], version) as stock:
        stock.subscribe()
        stock.listener.wait_messages(2)
        assert bodies(stock) == ["0", "2"]


@pytest.mark.deep
@versions
def test_transactions(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock:
        stock.send("input")
        stock.subscribe(ack="client")
        stock.subscribe("/queue/b", number="2")
        (message,) = stock.listener.wait_messages(1)
        for end, body in ((stock.connection.abort, "never"), (stock.connection.commit, "output")):
            transaction = stock.connection.begin()
            stock.ack(message, transaction=transaction)
            stock.send(body, "/queue/b", transaction=transaction)
            stock.confirmed(end, transaction)
            if body == "never":
                message = stock.listener.wait_messages(2)[1]  # given back by the abort
        stock.listener.wait(lambda: "output" in bodies(stock), "output")
        assert "never" not in bodies(stock)
    with Stock([broker], version) as stock:
        stock.subscribe()
        stock.send("next")
        assert [frame.body for frame in stock.listener.wait_messages(1)] == ["next"]  # "input" was consumed


@pytest.mark.deep
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_heart_beats_both_ways(brokers: Brokers, version: str) -> None:
    broker = brokers.master("a", heartBeatSend="1s", heartBeatReceive="1s")
    with Stock([broker], version, heartbeats=(1000, 1000)) as stock:  # less, and a busy machine is late
        stock.listener.wait(lambda: stock.listener.heartbeats >= 5, "heart-beats")  # 5 s: more than is tolerated
        assert stock.listener.heartbeat_timeouts == 0
        assert stock.connection.is_connected()
        broker.freeze()
        stock.listener.wait(lambda: stock.listener.heartbeat_timeouts > 0, "heart-beat timeout")
        broker.thaw()


@pytest.mark.deep
@versions
def test_a_refused_frame_is_an_error_frame_with_a_reason(broker: Broker, version: str) -> None:
    with Stock([broker], version) as stock:
        stock.connection.send("/topic/no-single.*", "x", headers={"receipt": "7"})
        stock.listener.wait(lambda: bool(stock.listener.errors), "ERROR")
        (error,) = stock.listener.errors
        assert error.headers["receipt-id"] == "7"
        assert error.headers["code"] == "DESTINATION_REFUSED"
        assert "only a subscription" in error.body
        stock.listener.wait(lambda: stock.listener.disconnects == 1, "end of the connection")


@pytest.mark.deep
@pytest.mark.parametrize(("login", "fails"), [(("alice", "right"), False), (("alice", "wrong"), True), (None, True)])
@pytest.mark.deep
@versions
def test_logins(brokers: Brokers, tmp_path: Path, version: str, login: tuple[str, str] | None, fails: bool) -> None:
    users = str(tmp_path / "users")
    add_user(users, "alice", "right")
    broker = brokers.master("a", usersFile=users, anonymous="no")
    stock = Stock([broker], version, login)
    if not fails:
        with stock:
            stock.send("x")
        return
    with pytest.raises(ConnectFailedException), stock:
        pass
    stock.listener.wait(lambda: bool(stock.listener.errors), "ERROR")
    (error,) = stock.listener.errors
    assert error.headers["code"] in ("LOGIN_REFUSED", "LOGIN_REQUIRED")
    assert "right" not in error.body
    stock.connection.transport.stop()


@pytest.mark.deep
@versions
def test_several_hosts_with_failover(brokers: Brokers, version: str) -> None:
    """What a user of stomp.py writes: connect again in `on_disconnected`; the list of hosts does the rest."""
    group = [brokers.master("a"), brokers.slave("b"), brokers.slave("c")]
    stock = Stock(group, version)

    def reconnect() -> None:
        threading.Thread(target=stock.connect).start()

    with stock:
        stock.send("one")
        for victim, body in ((group[0], "two"), (None, "three")):
            killed = victim or next(broker for broker in group[1:] if broker.said(SERVING))
            killed.kill()
            stock.listener.wait_disconnect()
            reconnect()
            stock.listener.wait_connect()
            stock.send(body)
        stock.subscribe()
        stock.listener.wait_messages(3)
        assert bodies(stock) == ["one", "two", "three"]
