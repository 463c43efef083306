"""Nothing that is written anywhere has a password or a token in it: logs of all levels and processes, the output of
`amq`, and the files of the store."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from amq.core.errors import AmqError
from amq.security.users_edit import add_user
from bench.wire import WireError
from tests.brokers import ROOT, Broker, Brokers
from tests.certificates import Authority, needs_openssl
from tests.oidc import Issuer
from tests.openwire_client import message, peer_of, send
from tests.patience import DEADLINE_S

pytestmark = needs_openssl
RIGHT, WRONG, OTHER = "correct-horse-battery", "staple-of-a-stranger", "of-somebody-else%2F"
BODY = "the-body-of-a-message"
RULES = '[roles]\nshop = ["alice", "web"]\n[queues.q]\nread = ["shop"]\nwrite = ["shop"]\n'


class World:
    """Two brokers that log everything, and all that anybody said."""

    def __init__(self, folder: Path, brokers: Brokers, trust: Path) -> None:
        self.folder = folder
        self.brokers = brokers
        self.trust = trust
        self.heard: list[str] = []  # what commands and errors said
        self.secrets: list[str] = []

    def amq(self, *words: str, passcode: str = "", login: str = "") -> int:
        """Run a command; its exit code."""
        environment = {**os.environ, "AMQ_PASSCODE": passcode, "AMQ_LOGIN": login}
        done = subprocess.run(
            [sys.executable, "-m", "amq.cli.main", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            stdin=subprocess.DEVNULL,
        )
        self.heard += [done.stdout, done.stderr]
        return done.returncode

    def url(self, *brokers: Broker, login: str = "") -> str:
        members = ",".join(f"stomp+ssl://{login}localhost:{broker.port}?trust={self.trust}" for broker in brokers)
        return f"failover:({members})?timeout={DEADLINE_S * 1000:.0f}"

    def everything(self) -> str:
        logs = [json.dumps(line, ensure_ascii=False) for each in self.brokers.brokers.values() for line in each.log]
        files = [path.read_bytes().decode("latin-1") for path in self.brokers.store.rglob("*") if path.is_file()]
        return "\n".join((*logs, *self.heard, *files))


def log_in_by_all_ways(world: World, master: Broker, slave: Broker, token: str, bent: list[str]) -> None:
    queue = ("--destination", "/queue/q", "--message", "one")
    both = world.url(master, slave)
    assert world.amq("producer", "--url", both, *queue, login="alice", passcode=RIGHT) == 0
    assert world.amq("producer", "--url", both, *queue, login="web", passcode=token) == 0
    for passcode in (WRONG, *bent):
        assert world.amq("producer", "--url", both, *queue, login="alice", passcode=passcode) == 7
    embedded = world.url(master, login=f"alice:{OTHER}@")
    assert world.amq("producer", "--url", embedded, *queue) == 7
    assert world.amq("producer", "--url", embedded + "&nonsense=1", *queue) == 2
    assert (
        world.amq(
            "producer",
            "--url",
            world.url(master, login=f"alice:{RIGHT}@"),
            "--destination",
            "/queue/no",
            "--message",
            BODY,
        )
        == 7
    )
    assert world.amq("status", "--url", world.url(master, login=f"alice:{WRONG}@")) != 0
    world.amq("doctor", "--tls", world.url(master, login=f"alice:{RIGHT}@"))
    assert world.amq("status", "--store", str(world.brokers.store)) == 0
    address = f"tcp://127.0.0.1:{master.port}"
    for user, passcode in (("alice", RIGHT), ("web", token)):
        with peer_of(address, user, passcode) as peer:
            send(peer, "q", [message(1)])
    for passcode in (WRONG, *bent):
        with pytest.raises(AmqError) as raised, peer_of(address, "alice", passcode):
            pass
        world.heard.append(str(raised.value))


def say_strange_things(world: World, master: Broker, token: str) -> None:
    """Secrets where they do not belong: in broken frames, in the wrong order, on a connection that breaks."""
    context = ssl.create_default_context(cafile=str(world.trust))
    frames = [
        b"CONNECT\nlogin:alice\npasscode:%s\npasscode\n\n\0",
        b"CONNECT\npasscode:%s\\x\n\n\0",
        b"SEND\nx:%s\n\n\0",
        b"CONNECT\naccept-version:9\nlogin:alice\npasscode:%s\n\n\0",
        b"CONNECT\npasscode:%s",
        b"%s\n\n\0",
        b"\x16%s",
    ]
    for secret in (RIGHT, token):
        for frame in frames:
            for tls in (True, False):
                with suppress(OSError), socket.create_connection(("127.0.0.1", master.port), DEADLINE_S) as plain:
                    sock = context.wrap_socket(plain, server_hostname="localhost") if tls else plain
                    with sock:
                        sock.sendall(frame % secret.encode())
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(4096):
                            pass


@pytest.mark.deep
def test_nothing_that_is_written_has_a_password_or_a_token(authority: Authority, tmp_path: Path) -> None:
    server, users, issuer = authority.pair("server"), tmp_path / "users", Issuer()
    rules = tmp_path / "permissions.toml"
    rules.write_text(RULES)
    add_user(str(users), "alice", RIGHT)
    options = {
        "certificate": server.certificate,
        "certificateKey": server.key,
        "tlsOptional": "true",
        "usersFile": users,
        "anonymous": "no",
        "permissionsFile": rules,
        "auditLog": "all",
        "logLevel": "debug",
        "tokenUser": "azp",
        "failedLoginsPerMinute": 0,
        **issuer.options,
    }
    token = issuer.token(azp="web")
    bent = [token[:-6] + "AAAAAA", issuer.token(azp="web", exp=1), issuer.token(azp="web", kid="gone")]
    with Brokers(tmp_path, scheme="auto+ssl", **options) as brokers:
        world = World(tmp_path, brokers, authority.trust)
        parts = [part for each in (token, *bent) for part in each.split(".")[1:]]
        world.secrets = [RIGHT, WRONG, OTHER, OTHER.replace("%2F", "/"), BODY, *(part[:24] for part in parts)]
        world.secrets += [users.read_text().strip().split("$")[-1]]  # the hash
        master, slave = brokers.master("a"), brokers.slave("b")
        log_in_by_all_ways(world, master, slave, token, bent)
        say_strange_things(world, master, token)
        users.write_text(users.read_text() + "broken line " + RIGHT + "\n")
        master.wait_event("users not changed")
        master.signal(signal.SIGHUP)
        master.wait_event("SIGHUP")
        master.kill()
        slave.wait_serving()
        client = slave.connect(login="web", passcode=token)
        client.send("SEND", {"destination": "/queue/no", "receipt": "1"}, BODY.encode())
        with pytest.raises(WireError) as raised:
            client.receipt("1", DEADLINE_S)
        world.heard.append(str(raised.value))
        client.close()
        slave.stop()
        issuer.close()
        everything = world.everything()
        for sentence in ("login refused", "not permitted", "the token has expired", "LOGIN_REFUSED"):
            assert sentence in everything, "the run said too little to prove anything"
        assert [secret for secret in world.secrets if secret in everything] == []
