"""`amq status`: of a store (who is master, which slaves wait) or of the brokers of a URL (who serves clients)."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import click

from amq.cli import exits
from amq.cli.output import duration_text, examples, json_option, print_json, print_table, size_text, wall_text
from amq.cli.store import check_store
from amq.client.uri import BrokerUri, parse
from amq.errors import AmqError, StoreError
from amq.journal.recovery import JOURNAL_DIRECTORY
from amq.journal.segment import list_segments
from amq.lock.host import Owner
from amq.lock.status import StoreStatus, store_status
from amq.protocols.stomp.frame import Frame, FrameReader, encode
from amq.vfs import SystemVfs

_EPILOG = examples(
    "amq status --store /mnt/shared/amq",
    "amq status --store /mnt/shared/amq --json | jq -r .master.name",
    "amq status --url 'failover:(stomp://a:61613,stomp://b:61613)'",
)


@click.command(epilog=_EPILOG)
@click.option("--store", metavar="DIR", help="Store directory to look into. Takes no lock.")
@click.option("--url", metavar="URL", help="Broker URL: each broker in it is asked.")
@click.option("--login", default="", help="With --url: log in as, where the URL does not say.")
@click.option("--passcode", default="", envvar="AMQ_PASSCODE", help="With --url. Default: $AMQ_PASSCODE.")
@json_option
def status(store: str | None, url: str | None, login: str, passcode: str, as_json: bool) -> None:
    """Show who is master of a store, or which broker of a URL serves clients.

    Exit code 0 where there is a master, 1 where there is none.
    """
    if (store is None) == (url is None):
        raise click.UsageError("give one of --store and --url")
    if store is not None:
        facts = _of_store(store)
        serving = facts["master"] is not None
    else:
        facts = {"brokers": _of_url(str(url), login, passcode)}
        serving = any(broker["state"] == "serving" for broker in facts["brokers"])
    if as_json:
        print_json(facts)
    elif store is not None:
        _print_store(facts)
    else:
        _print_url(facts["brokers"])
    if not serving:
        raise click.exceptions.Exit(exits.FAILED)


# -- a store -----------------------------------------------------------------------------------------------------------


def _of_store(store: str) -> dict[str, Any]:
    vfs = SystemVfs()
    check_store(vfs, store)
    try:
        seen = store_status(vfs, store)
        segments, size = _journal_size(vfs, store)
        free = vfs.free_bytes(store)
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}: the store cannot be read") from error
    epoch, master = seen.epoch, seen.master
    return {
        "store": os.path.abspath(store),
        "master": None if master is None or master.owner is None else _owner(master.owner),
        "lock": seen.lock,
        "epoch": epoch.number if epoch is not None else 0,
        "epoch_owner": epoch.owner.name if epoch is not None else "",
        "since": _iso(epoch.started_wall_ms) if epoch is not None else None,
        "since_wall_ms": epoch.started_wall_ms if epoch is not None else None,
        "reason": epoch.reason if epoch is not None else "",
        "released": seen.released,
        "heartbeat": _iso(seen.heartbeat_wall_ms),
        "slaves": _slaves(seen),
        "journal": {"segments": segments, "bytes": size},
        "free_bytes": free,
    }


def _slaves(seen: StoreStatus) -> list[dict[str, Any]]:
    return [
        _owner(broker.owner) if broker.owner is not None else {"name": broker.name, "host": "", "pid": None, "urls": []}
        for broker in seen.slaves
    ]


def _owner(owner: Owner) -> dict[str, Any]:
    return {"name": owner.name, "host": owner.host, "pid": owner.pid, "urls": list(owner.transport_urls)}


def _journal_size(vfs: SystemVfs, store: str) -> tuple[int, int]:
    """(segments, bytes), space reserved for the newest one included."""
    directory = os.path.join(store, JOURNAL_DIRECTORY)
    sizes = []
    try:
        for name in list_segments(vfs, directory):
            try:
                sizes.append(vfs.stat(os.path.join(directory, name)).st_size)
            except FileNotFoundError:
                continue  # deleted between the listing and the look
    except FileNotFoundError:
        return 0, 0
    return len(sizes), sum(sizes)


def _iso(wall_ms: int | None) -> str | None:
    return None if wall_ms is None else f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _print_store(facts: dict[str, Any]) -> None:
    master = facts["master"]
    if master is not None:
        who = f"{master['name']} (host {master['host']}, pid {master['pid']})"
    elif facts["released"]:
        who = f"none: {facts['epoch_owner']} handed the store over"
    elif facts["lock"] == "held":
        who = "none yet: the lock is held, a broker is taking over"
    else:
        who = "none"
    click.echo(f"master   {who}")
    if master is not None:
        click.echo(f"serves   {', '.join(master['urls'])}")
    if facts["epoch"]:
        age = duration_text(max(0.0, time.time() - facts["since_wall_ms"] / 1000))
        since = wall_text(facts["since_wall_ms"])
        click.echo(f"epoch    {facts['epoch']}, since {since} ({age} ago): {facts['reason']}")
    click.echo(f"lock     {facts['lock']}")
    slaves = ", ".join(f"{slave['name']} (host {slave['host']}, pid {slave['pid']})" for slave in facts["slaves"])
    click.echo(f"slaves   {slaves or 'none: nobody would take over'}")
    journal = facts["journal"]
    click.echo(f"journal  {size_text(journal['bytes'])} in {journal['segments']} segments")
    click.echo(f"free     {size_text(facts['free_bytes'])}")


# -- a URL -------------------------------------------------------------------------------------------------------------


def _of_url(url: str, login: str, passcode: str) -> list[dict[str, Any]]:
    uris = parse(url).uris
    with ThreadPoolExecutor(min(len(uris), 16)) as pool:
        return list(pool.map(lambda uri: ask(uri, uri.login or login, uri.passcode or passcode), uris))


def ask(uri: BrokerUri, login: str, passcode: str) -> dict[str, Any]:
    """One broker: does it serve, who is it?

    `state` is serving, refused (nobody listens: a slave, or nothing), unreachable, or rejected (it answers ERROR).
    """
    facts: dict[str, Any] = {"url": str(uri), "state": "", "broker": "", "epoch": None, "server": "", "reason": ""}
    started = time.monotonic()
    try:
        answer = _handshake(uri, login, passcode)
    except ConnectionRefusedError:
        return facts | {"state": "refused", "reason": "nobody listens: a slave, or no broker"}
    except (OSError, AmqError) as error:
        return facts | {"state": "unreachable", "reason": str(error)}
    if answer.command != "CONNECTED":
        return facts | {"state": "rejected", "reason": answer.headers.get("message", answer.command)}
    epoch = answer.headers.get("amq-epoch", "")
    return facts | {
        "state": "serving", "broker": answer.headers.get("amq-broker", ""),
        "epoch": int(epoch) if epoch.isdecimal() else None, "server": answer.headers.get("server", ""),
        "answered_ms": round((time.monotonic() - started) * 1000, 1),
    }  # fmt: skip


def _handshake(uri: BrokerUri, login: str, passcode: str) -> Frame:
    """The broker's answer to CONNECT. Raises OSError, ProtocolError."""
    deadline = time.monotonic() + uri.options.connect_timeout_ms / 1000
    headers = [("accept-version", "1.0,1.1,1.2"), ("host", uri.options.virtual_host or uri.host), ("heart-beat", "0,0")]
    if login:
        headers += [("login", login), ("passcode", passcode)]
    with socket.create_connection(uri.address, uri.options.connect_timeout_ms / 1000) as sock:
        sock.sendall(encode("CONNECT", headers))
        reader = FrameReader()
        while True:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            data = sock.recv(65536)
            for frame in reader.feed(data):
                if frame.command == "CONNECTED":
                    sock.sendall(encode("DISCONNECT", []))
                return frame
            if reader.error is not None:
                raise reader.error
            if not data:
                raise ConnectionResetError("the broker closed the connection without an answer")


def _print_url(brokers: list[dict[str, Any]]) -> None:
    rows = [
        (
            broker["url"], broker["state"], broker["broker"] or "-", broker["epoch"] if broker["epoch"] else "-",
            broker["server"] or broker["reason"],
        )
        for broker in brokers
    ]  # fmt: skip
    print_table(("url", "state", "broker", "epoch", ""), rows)
