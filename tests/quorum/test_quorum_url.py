"""URLs of coordinators."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.retry import ForceRetryError

from amq.core.errors import ConfigError
from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.store.coordinated.url import CoordinatorUrl
from amq.store.coordinated.zookeeper import AGAIN_S, ZooKeeper


def test_all_that_a_url_says() -> None:
    plain = CoordinatorUrl.parse("etcd://a,b:1234,[::1]")
    assert plain.servers == (("a", 2379), ("b", 1234), ("::1", 2379))
    assert (plain.namespace, plain.session_s, plain.call_s, plain.user, plain.tls) == ("amq", 5.0, 5.0, "", False)
    assert plain.context() is None
    full = CoordinatorUrl.parse(
        "zookeeper://me%40x@a?namespace=shop/eu&sessionTimeout=4000&requestTimeout=900&passwordFile=/p&tls=true"
    )
    assert full.servers == (("a", 2181),)
    assert (full.namespace, full.session_s, full.call_s) == ("shop/eu", 4.0, 0.9)
    assert (full.user, full.password_file, full.tls) == ("me@x", "/p", True)
    assert CoordinatorUrl.parse("etcd://a?caFile=/ca.pem").tls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("etcd:a", "does not begin"),
        ("consul://a", "does not begin"),
        ("etcd://", "name its servers"),
        ("etcd://a,,b", "name its servers"),
        ("etcd://a:b", "not HOST:PORT"),
        ("etcd://a/b", "nothing may follow"),
        ("etcd://a?b=c", "unknown option 'b'"),
        ("etcd://a?namespace=b&namespace=c", "it has an option twice"),
        ("etcd://a?sessionTimeout=5s", "milliseconds"),
        ("etcd://a?namespace=../b", "namespace"),
        ("etcd://a?tls=false&caFile=/ca", "tls"),
        ("etcd://me@a", "passwordFile"),
        ("etcd://a?passwordFile=/p", "user"),
        ("etcd://me:secret@a", "holds a password"),
        ("etcd://" + ",".join(["a"] * 17), "more than 16"),
    ],
)
def test_what_is_wrong_is_said_and_no_password_is_shown(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        CoordinatorUrl.parse(url)
    assert raised.value.code == "STORE_URL_INVALID"
    assert "secret" not in str(raised.value)


def test_a_zookeeper_that_was_away_for_long_is_called_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all clients that live on: those of sessions, and that of all calls."""
    monkeypatch.setattr(KazooClient, "start", lambda *_, **__: None)
    client = ZooKeeper(CoordinatorUrl.parse("zookeeper://a"), SystemThreads(), SystemClock()).connect("x", 1.0)
    slept: list[float] = []
    again = client._connection.retry_sleeper.copy()
    again.sleep_func, again.interrupt = slept.append, None

    def call() -> str:
        if len(slept) < 1000:
            raise ForceRetryError("no server answers")
        return "connected"

    assert again(call) == "connected"
    assert max(slept) <= 1.5 * AGAIN_S
