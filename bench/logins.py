"""How long do thousands of clients take to log in again after a takeover, and does the event loop serve meanwhile?

Two brokers with a users file and a store that they share. The master is killed, and when the next one serves all
clients connect to it at once, each with a password. A client that the broker closes connects again, as real ones do.
Meanwhile a client that is in already sends messages, one after the other, and measures how long each takes to be
confirmed: that is the lag that everybody has.

Rows: `one user` for all clients; `users` = this many different ones; `tokens` = each client is a separate user, with a
JSON web token (RS256) of an issuer on this host; `wrong` = every client has a separate wrong password, from one
address, and gives up at the first refusal.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.table import Table

from amq.security import hash_password
from bench import brokers, cli
from bench.wire import WireConnection, WireError, encode
from tests.oidc import Issuer

CLIENTS: Final = 5000
USERS: Final = (1, 50, 500)
PASSWORD: Final = "one of all"
PROBE: Final = "probe"
PATIENCE_S: Final = 900.0
SOURCES: Final = 16  # loopback addresses
CONNECTING_MAX: Final = 4000  # the backlog of a listening socket has room for 4096
EXAMPLES: Final = ("", "--clients 1000 --users 1 --users 1000", "--quick", "--json logins.json")


RIGHT, TOKEN, WRONG = "the right password", "a token", "a wrong password"  # each client's passcode


class StormRow(NamedTuple):
    """A storm of clients that log in as this many users."""

    title: str
    users: int
    how: str


class Storm(NamedTuple):
    """One row. Times in seconds; half and all = until this many clients were in, or refused for good."""

    row: str
    clients: int
    users: int
    half_s: float
    all_s: float
    refused: int
    closed: int  # connections that the broker closed for their time was over
    cpu_s: float  # of the broker
    probes: int
    probe_p99_ms: float
    probe_max_ms: float
    grown_mib: float  # resident memory, with all clients in


class Probe(threading.Thread):
    """A client that is in: sends, waits for the receipt, and again."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.client = WireConnection(port, timeout_s=PATIENCE_S, login=PROBE, passcode=PASSWORD)
        self.lags_ms: list[float] = []
        self._done = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._done.wait(0.005):
            number += 1
            began = time.monotonic()
            self.client.send("SEND", {"destination": "/topic/probe", "receipt": number}, b"x")
            self.client.receipt(str(number), PATIENCE_S)
            self.lags_ms.append((time.monotonic() - began) * 1000)

    def stop(self) -> None:
        self._done.set()
        self.join()
        self.client.close()


class Clients:
    """All of a storm, over one selector. Client n logs in as user n % `users` with passcode n % len(`passcodes`)."""

    def __init__(self, port: int, count: int, users: int, passcodes: Sequence[str], wrong: bool) -> None:
        self._port = port
        self._users = users
        self._passcodes = passcodes
        self._wrong = wrong
        self._selector = selectors.DefaultSelector()
        self._waiting = list(range(count))
        self.inside: list[socket.socket] = []
        self.answered_s: list[float] = []
        self.refused = self.closed = 0

    def run(self) -> None:
        """Until each is in, or refused."""
        began = time.monotonic()
        count = len(self._waiting)
        while len(self.inside) + self.refused < count:
            while self._waiting and len(self._selector.get_map()) < CONNECTING_MAX:
                self._connect(self._waiting.pop())
            for key, _ in self._selector.select(1.0):
                self._hear(key, time.monotonic() - began)
            if time.monotonic() - began > PATIENCE_S:
                raise WireError(f"{len(self._waiting)} clients are not in after {PATIENCE_S:g} s")

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for sock in self.inside:
            sock.close()
        self._selector.close()

    def _connect(self, number: int) -> None:
        source = "127.0.0.1" if self._wrong else f"127.0.0.{2 + number % SOURCES}"
        sock = socket.create_connection(("127.0.0.1", self._port), 30, (source, 0))
        passcode = self._passcodes[number % len(self._passcodes)]
        login = {"login": f"u{number % self._users}", "passcode": passcode}
        sock.sendall(encode("CONNECT", {"accept-version": "1.2", "host": "/", **login}))
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, number)

    def _hear(self, key: selectors.SelectorKey, now_s: float) -> None:
        sock: socket.socket = key.fileobj  # type: ignore[assignment]
        try:
            said = sock.recv(4096)
        except ConnectionError:
            said = b""
        self._selector.unregister(sock)
        if said.startswith(b"CONNECTED"):
            self.inside.append(sock)
            self.answered_s.append(now_s)
            return
        sock.close()
        if self._wrong:
            self.refused += 1
            self.answered_s.append(now_s)
        else:
            self.closed += 1
            self._waiting.append(key.data)


def users_file(path: Path, users: int) -> None:
    """So many users with one password. The broker checks each on its own; to hash it once for all is quicker."""
    line = hash_password(PASSWORD, hashlib.sha256(b"bench").digest()[:16])
    names = [PROBE, *(f"u{number}" for number in range(users))]
    path.write_text("".join(f"{name}:{line}\n" for name in names))
    path.chmod(0o600)


def measure(row: StormRow, clients: int, args: argparse.Namespace) -> Storm:
    """Raises OSError, WireError, BrokerError."""
    group = brokers.BrokerGroup("amq", 2, keep_alive_ms=1000, directory=args.dir, options=cli.amq_options(args))
    users_path = group.directory / "users"
    users_file(users_path, 0 if row.how == TOKEN else row.users)
    for broker in group.brokers:
        broker.options["usersFile"] = str(users_path)
    passcodes = [PASSWORD] if row.how == RIGHT else [f"wrong {number}" for number in range(clients)]
    with ExitStack() as stack:
        if row.how == TOKEN:
            issuer = Issuer()
            stack.callback(issuer.close)
            for broker in group.brokers:
                broker.options |= issuer.options
            passcodes = [issuer.token(sub=f"u{number}", exp=int(time.time()) + 3600) for number in range(row.users)]
        stack.enter_context(group)
        first, second = group.brokers
        first.kill()
        _answers(second)
        probe = Probe(second.port)
        storm = Clients(second.port, clients, row.users, passcodes, row.how == WRONG)
        before_bytes, before_s = second.memory_bytes(), second.cpu_s()
        probe.start()
        try:
            storm.run()
            grown = second.memory_bytes() - before_bytes
        finally:
            probe.stop()
            storm.close()
        cpu_s = second.cpu_s() - before_s
    times, lags = sorted(storm.answered_s), sorted(probe.lags_ms)
    return Storm(
        row.title,
        clients,
        row.users,
        times[len(times) // 2],
        times[-1],
        storm.refused,
        storm.closed,
        cpu_s,
        len(lags),
        lags[len(lags) * 99 // 100],
        lags[-1],
        grown / (1 << 20),
    )


def _answers(broker: brokers.BrokerProcess) -> None:
    """Wait until it serves: it lets the probe in."""
    until = time.monotonic() + brokers.START_TIMEOUT_S
    while True:
        try:
            WireConnection(broker.port, timeout_s=5, login=PROBE, passcode=PASSWORD).close()
            return
        except (OSError, WireError):
            broker.check()
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def table(storms: list[Storm]) -> Table:
    shown = Table(title="logins after a takeover")
    headings = ("", "clients", "half", "all", "refused", "closed", "broker CPU", "lag p99", "lag max", "grown")
    for heading in headings:
        shown.add_column(heading, justify="right" if heading else "left")
    for storm in storms:
        shown.add_row(
            storm.row,
            f"{storm.clients:,}",
            f"{storm.half_s:.1f} s",
            f"{storm.all_s:.1f} s",
            f"{storm.refused:,}",
            f"{storm.closed:,}",
            f"{storm.cpu_s:.1f} s",
            f"{storm.probe_p99_ms:.0f} ms",
            f"{storm.probe_max_ms:.0f} ms",
            f"{storm.grown_mib:.0f} MiB",
        )
    return shown


def main() -> None:
    parser = cli.parser("logins", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--clients", type=int, metavar="N", default=CLIENTS, help="default %(default)s")
    parser.add_argument("--users", type=int, metavar="N", action="append", help=f"may be repeated; default {USERS}")
    args = parser.parse_args()
    cli.terminate_on_signal()
    clients, users = (200, [1, 20]) if args.quick else (args.clients, args.users or list(USERS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rows = [StormRow(f"{number} users" if number > 1 else "one user", number, RIGHT) for number in users]
    rows += [StormRow("tokens", clients, TOKEN), StormRow("wrong passwords, one address", 1, WRONG)]
    storms: list[Storm] = []
    try:
        for row in rows:
            cli.progress(row.title)
            storms.append(measure(row, clients, args))
    except (OSError, WireError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    report: dict[str, Any] = {"storms": [storm._asdict() for storm in storms]}
    cli.show(args, report, table(storms))


if __name__ == "__main__":
    main()
