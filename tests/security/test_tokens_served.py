"""Tokens as clients use them: STOMP and OpenWire against a real broker that asks a real issuer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TypeVar

import jwt
import pytest

from amq.config import load
from amq.core.errors import AmqError, ConfigError
from amq_migrate.openwire.peer import OtherBroker
from bench.wire import WireConnection, WireError
from tests.brokers import Broker, Brokers
from tests.oidc import Issuer
from tests.openwire_client import message, new_peer, peer_of, send
from tests.patience import DEADLINE_S

Used = TypeVar("Used")

RULES = """
[roles]
shop = []
[queues."orders.>"]
read = ["shop"]
write = ["shop"]
"""
SHOP = {"realm_access": {"roles": ["shop", "another service"]}}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


@pytest.fixture(scope="module")
def broker(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "permissions.toml").write_text(RULES)
    options = {
        **issuer.options,
        "anonymous": "no",
        "permissionsFile": directory / "permissions.toml",
        "auditLog": "all",
        "failedLoginsPerMinute": 0,
    }
    with Brokers(directory, scheme="auto", **options) as brokers:
        yield brokers.master()


def test_roles_come_with_the_token(broker: Broker, issuer: Issuer) -> None:
    with broker.connect(login="alice", passcode=issuer.token(**SHOP)) as client:
        client.send("SEND", {"destination": "/queue/orders.eu", "receipt": "1"}, b"x")
        client.receipt("1", DEADLINE_S)
        with broker.connect(login="alice", passcode=issuer.token()) as other:
            other.send("SEND", {"destination": "/queue/orders.eu", "receipt": "1"}, b"x")
            with pytest.raises(WireError, match="may not send to"):
                other.receipt("1", DEADLINE_S)
        client.send("SEND", {"destination": "/queue/orders.eu", "receipt": "2"}, b"x")
        client.receipt("2", DEADLINE_S)  # the same user, by another token: each connection has the roles of its own
    with peer_of(f"tcp://127.0.0.1:{broker.port}", "", issuer.token(**SHOP)) as peer:
        send(peer, "orders.eu", [message(1)])
    assert {line["shown"] for line in broker.said("login") if line["event"] == "login"} == {"token"}


def before_its_end(use: Callable[[int], Used]) -> tuple[int, Used]:
    """The second in which a token ends, and what was done with it before: a slow machine gets one that lives longer."""
    for life_s in (3, 12, 48):
        end = int(time.time()) + life_s
        with suppress(WireError, AmqError):
            return end, use(end)
    raise AssertionError("each token ended too soon")


def test_a_stomp_connection_ends_when_its_token_does(broker: Broker, issuer: Issuer) -> None:
    def use(end: int) -> WireConnection:
        client = broker.connect(login="alice", passcode=issuer.token(exp=end, **SHOP))
        client.send("SEND", {"destination": "/queue/orders.eu", "receipt": "1"}, b"x")
        client.receipt("1", DEADLINE_S)
        return client

    end, client = before_its_end(use)
    with client, pytest.raises(WireError, match="this connection has logged in has expired"):
        client.next_frame(DEADLINE_S)
    assert end <= time.time()
    with pytest.raises(WireError, match="the token has expired"):
        broker.connect(login="alice", passcode=issuer.token(exp=end))


@pytest.mark.deep
def test_an_openwire_connection_ends_when_its_token_does(broker: Broker, issuer: Issuer) -> None:
    with ExitStack() as stack:

        def use(end: int) -> OtherBroker:
            passcode = issuer.token(exp=end, **SHOP)
            peer = stack.enter_context(closing(new_peer(f"tcp://127.0.0.1:{broker.port}", "alice", passcode)))
            send(peer, "orders.eu", [message(2)])
            return peer

        end, peer = before_its_end(use)
        with pytest.raises(AmqError, match="has expired"):
            peer.wait(lambda: False, DEADLINE_S, "goes on")
    assert end <= time.time()
    with (
        pytest.raises(AmqError, match="the token has expired"),
        peer_of(f"tcp://127.0.0.1:{broker.port}", "alice", issuer.token(exp=end)),
    ):
        raise AssertionError("it was let in")


@pytest.mark.parametrize("protocol", ["stomp", "openwire"])
def test_bent_tokens_and_passwords_are_refused(broker: Broker, issuer: Issuer, protocol: str) -> None:
    bent = [
        issuer.token(aud="other"),
        issuer.token(exp=None),
        issuer.token(kid="r9"),
        issuer.token()[:-5],
        jwt.encode(issuer.claims(), None, "none", {"kid": "r1"}),
        "password",
    ]
    for passcode in bent:
        with pytest.raises((WireError, AmqError), match="login refused"):
            if protocol == "stomp":
                broker.connect(login="alice", passcode=passcode)
            else:
                with peer_of(f"tcp://127.0.0.1:{broker.port}", "alice", passcode):
                    raise AssertionError("it was let in")


def test_options_change_while_the_broker_runs(issuer: Issuer, tmp_path: Path) -> None:
    config = tmp_path / "amq.toml"
    right = f'[security]\ntokenIssuer = "{issuer.url}"\ntokenAudience = "amq-shop"\nanonymous = "no"\n'
    config.write_text(right)
    with Brokers(tmp_path, config=config) as brokers:
        broker = brokers.master()
        client = broker.connect(passcode=issuer.token(), login="alice")
        after = len(broker.log)
        config.write_text(right.replace("amq-shop", "amq-other"))
        broker.wait_line(lambda line: "logins read" in str(line.get("event")), "logins read", after=after)
        with pytest.raises(WireError, match="aud"):
            broker.connect(passcode=issuer.token(), login="alice")
        broker.connect(passcode=issuer.token(aud="amq-other"), login="alice").close()
        client.send("SEND", {"destination": "/queue/a", "receipt": "1"}, b"x")
        client.receipt("1", DEADLINE_S)
        client.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokenAudience": ""}, "without tokenAudience"),
        ({"tokenIssuer": "http://issuer.example"}, "must begin with https"),
        ({"tokenKeys": "ftp://issuer.example/keys"}, "must begin with https"),
        ({"tokenAlgorithms": "RS256,HS256"}, "shared secret"),
        ({"tokenAlgorithms": "none"}, "shared secret"),
        ({"tokenIssuer": "", "tokenRoles": "roles"}, "has no effect"),
        ({"tokenUser": ""}, "without tokenUser"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, str], says: str) -> None:
    given = {"tokenIssuer": "https://issuer.example", "tokenAudience": "amq", "anonymous": "no", **options}
    with pytest.raises(ConfigError, match=says):
        load(None, {}, [f"{key}={value}" for key, value in given.items()])


def test_tokens_are_enough_to_log_in() -> None:
    given = ("tokenIssuer=https://issuer.example", "tokenAudience=amq", "anonymous=no")
    assert load(None, {}, given).warnings == ()
