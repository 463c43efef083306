"""`amq status`: of a store (who is master, which slaves wait) or of the brokers of a URL (who serves clients)."""

from __future__ import annotations

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from click.core import ParameterSource

from amq.cli import exits
from amq.cli.clients import parse_url
from amq.cli.management import chosen, place_of
from amq.cli.output import (
    duration_text,
    examples,
    json_option,
    print_json,
    print_table,
    reading_text,
    size_text,
    wall_text,
)
from amq.cli.store import check_store, store_of
from amq.client import ConnectError, tls
from amq.client.uri import BrokerUri
from amq.config import group
from amq.config.transport_url import reachable
from amq.core.errors import AmqError, StoreError
from amq.doors.clock import SystemClock
from amq.journal.segment import list_segments
from amq.management.consoles import is_loopback, web_url
from amq.protocols.stomp.frame import Frame, FrameReader, encode
from amq.store.host import Owner
from amq.store.name import full_name, is_coordinator
from amq.store.open import open_coordinator
from amq.store.presence import BrokerPresence
from amq.store.segment_log import SegmentLog
from amq.store.status import StoreStatus, silence, store_status

SECONDS_MAX = 253_402_300_799  # the year 9999
_EPILOG = examples(
    "amq status --store /mnt/shared/amq",
    "amq status --store /mnt/shared/amq --json | jq -r .master.name",
    "amq status --cluster /mnt/shared/cluster",
    "amq status --url 'failover:(stomp://a:61613,stomp://b:61613)'",
)


@click.command(epilog=_EPILOG)
@click.option(
    "--store", metavar="DIR|URL", envvar="AMQ_STORE", help="Store to look into; or $AMQ_STORE. Takes no lock."
)
@click.option(
    "--cluster",
    metavar="DIR",
    envvar="AMQ_CLUSTER",
    help="Cluster: all its stores and nodes, as by `amq cluster status`; or $AMQ_CLUSTER. With --store NAME: that one.",
)
@click.option(
    "--url", metavar="URL", help="Broker URL: each broker in it is asked. The environment does not count then."
)
@click.option("--login", default="", envvar="AMQ_LOGIN", help="With --url: user, where it has none; or $AMQ_LOGIN.")
@click.option("--passcode", default="", envvar="AMQ_PASSCODE", help="With --url: password; or $AMQ_PASSCODE.")
@json_option
@click.pass_context
def status(
    context: click.Context,
    store: str | None,
    cluster: str | None,
    url: str | None,
    login: str,
    passcode: str,
    as_json: bool,
) -> None:
    """Show who is master of a store, of each store of a cluster, or of the group of a URL.

    Exit code 0: a master serves. 1: there is none, or it is silent. `state` in the JSON is one of "serving"; "silent"
    (the master has written no heartbeat for longer than its lockKeepAlivePeriod and confirms nothing: it pauses,
    or cannot reach the store); "taking over"; "loading" (the same, and `successor.reading` says how much of the journal
    is read); "none".

    `heartbeat_age_s` and `lag_s` (of a slave: the time since it last knew all that there was to know; null where it
    never did, or does not follow) compare the wall clocks of two hosts. Where the heartbeat seems old, this command
    watches for a new one for up to 5 seconds before it says "silent".

    `not_running` lists brokers that have run on the store and stopped or died. Delete the file of such a broker in
    brokers/ to end its entry.

    `version` is that of the store: the stored format in which its last master writes. A slave that is `too_old` cannot
    read it and never takes over: upgrade it.

    `console` is the URL that the console of a broker has announced, null where it has none.

    `copies` are those of a replicated store: `counting` with the `needed` number that must have a write before it is
    confirmed, and `running`, whose members the coordinator sees; null of another store. `seen` is how the master sees
    each of them, null where there is no master: `state` level, behind, filling or silent, `lag_bytes` that it lacks
    (null = unknown), and for how long it has been `behind_s` or `silent_s`. `blocked`: too few answer, so that nothing
    is confirmed.

    `urls` are where a broker listens, `addresses` where it says that clients reach it (advertisedTransports).
    """
    if url is not None:
        store, cluster = (
            None if context.get_parameter_source(name) is ParameterSource.ENVIRONMENT else value
            for name, value in (("store", store), ("cluster", cluster))
        )
    else:
        store, _, cluster = chosen(store or "", "", cluster or "")
        store = place_of(store, cluster) or None
    if bool(store) + bool(cluster and not store) + (url is not None) != 1:
        raise click.UsageError("give one of --store, --cluster and --url")
    if cluster and not store:
        _of_cluster(cluster, as_json)
        return
    if store is not None:
        facts = _of_store(store)
        serving = facts["state"] == "serving"
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


def _of_cluster(directory: str, as_json: bool) -> None:
    from amq.cli.cluster_status import facts_of, print_facts
    from amq.cluster.directory import Cluster

    facts = facts_of(Cluster(directory))
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
    if any(store["master"] is None for store in facts["stores"]):
        raise click.exceptions.Exit(exits.FAILED)


# -- a store -----------------------------------------------------------------------------------------------------------


def _of_store(store: str) -> dict[str, Any]:
    found = store_of(store)
    check_store(found)
    clock = SystemClock()
    try:
        seen = store_status(found)
        silent_s = silence(found.election, clock, seen, time.sleep)
        if silent_s is not None:  # that took a while: another broker may be master now
            before, seen = seen, store_status(found)
            silent_s = silent_s if (before.epoch, before.heartbeat) == (seen.epoch, seen.heartbeat) else None
        segments, size = _journal_size(found.log)
        free = found.log.free_bytes()
    except OSError as error:
        raise StoreError(f"{error.filename or store}: {error.strerror}: the store cannot be read") from error
    epoch, master, last_ms = seen.epoch, seen.master, seen.last_sign_wall_ms
    url = epoch.lock.url if epoch is not None else ""
    return {
        "store": full_name(store),
        "state": _state(seen, silent_s),
        "master": None if master is None or master.owner is None else _broker(master),
        "silent_s": None if silent_s is None else round(silent_s, 1),
        "successor": _successor(seen),
        "lock": seen.lock,
        "locker": url,
        "locker_servers": dict(open_coordinator(url).servers()) if is_coordinator(url) else {},
        "epoch": epoch.number if epoch is not None else 0,
        "epoch_owner": epoch.owner.name if epoch is not None else "",
        "version": epoch.format if epoch is not None else None,
        "since": _iso(epoch.started_wall_ms) if epoch is not None else None,
        "since_wall_ms": epoch.started_wall_ms if epoch is not None else None,
        "reason": epoch.reason if epoch is not None else "",
        "released": seen.released,
        "heartbeat": _iso(seen.heartbeat_wall_ms),
        "heartbeat_age_s": None if last_ms is None else (clock.wall_ms() - last_ms) / 1000,
        "slaves": _slaves(seen),
        "not_running": [
            {**_broker(each), "last_seen": _iso(ms := seen.last_seen_wall_ms(each)), "last_seen_wall_ms": ms}
            for each in seen.gone
        ],
        "options_differ": options_differ(seen),
        "store_full": master is not None and master.facts.get("store_full") is True,
        "copies": None if seen.copies is None else asdict(seen.copies) | _copies_seen(seen),
        "journal": {"segments": segments, "bytes": size},
        "free_bytes": free,
    }


def _copies_seen(seen: StoreStatus) -> dict[str, Any]:
    told = seen.copies_seen
    if told is None:
        return {"blocked": None, "seen": None}
    body = told.to_json()
    return {"blocked": body["blocked"], "seen": body["copies"]}


def _state(seen: StoreStatus, silent_s: float | None) -> str:
    """serving, silent, loading (a broker reads the journal, it will serve), taking over, or none."""
    if seen.master is not None:
        return "serving" if silent_s is None else "silent"
    if seen.successor is not None and _reading(seen.successor) is not None:
        return "loading"
    return "taking over" if seen.lock == "held" else "none"


def _successor(seen: StoreStatus) -> dict[str, Any] | None:
    broker = seen.successor
    return None if broker is None else {**_broker(broker), "reading": _reading(broker)}


def _slaves(seen: StoreStatus) -> list[dict[str, Any]]:
    now_ms = SystemClock().wall_ms()
    found = []
    for broker in seen.slaves:
        followed = _numbers(broker, "followed", "messages", "caught_up_wall_ms")
        caught_up_ms = followed["caught_up_wall_ms"] if followed is not None else 0
        lag_s = max(0, now_ms - caught_up_ms) / 1000 if caught_up_ms else None
        why = broker.facts.get("cannot_listen")
        cannot_listen = why if isinstance(why, str) and why else None
        found.append(
            {
                **_broker(broker),
                "followed": followed,
                "lag_s": lag_s,
                "cannot_listen": cannot_listen,
                "too_old": seen.too_old(broker),
                "not_ready": broker.not_ready or None,
                "passive": broker.facts.get("passive") is True,
            }
        )
    return found


def options_differ(seen: StoreStatus) -> list[dict[str, Any]]:
    """The brokers whose shared options differ from the master's, or from the first one's where there is no master."""
    told = [(broker, broker.facts.get("options")) for broker in seen.brokers]
    published = [(broker, options) for broker, options in told if isinstance(options, dict)]
    first = next((each for each in published if each[0] is seen.master), published[0] if published else None)
    if first is None:
        return []
    found = []
    for broker, options in published:
        differences = group.differences(options, first[1])
        if broker is not first[0] and differences:
            values = {key: list(pair) for key, pair in differences.items()}
            text = group.describe(differences, broker.name, first[0].name)
            found.append({"broker": broker.name, "from": first[0].name, "options": values, "text": text})
    return found


def _reading(broker: BrokerPresence) -> dict[str, Any] | None:
    return _numbers(broker, "reading", "read_bytes", "of_bytes", "messages", "left_s")


def _numbers(broker: BrokerPresence, key: str, *names: str) -> dict[str, Any] | None:
    """The facts of `broker` under `key`, if they have these numbers: it may be of another version."""
    told = broker.details.get(key)
    whole = isinstance(told, dict) and all(isinstance(told.get(name), int | float) for name in names)
    return told if whole else None


def _broker(broker: BrokerPresence) -> dict[str, Any]:
    owner = broker.owner
    return {
        "name": broker.name if owner is None else owner.name,  # None: it is just writing who it is
        "host": "" if owner is None else owner.host,
        "pid": None if owner is None else owner.pid,
        "urls": [] if owner is None else _urls(broker, owner),
        "addresses": broker.addresses,
        "priority": broker.priority,
        "certificate": _certificate(broker),
        "console": web_url(broker.console) or None,
    }


def _certificate(broker: BrokerPresence) -> dict[str, Any] | None:
    """Of its TLS ports; None = it has none, or is of another version."""
    told = broker.facts.get("certificate")
    end_s = told.get("not_after_s") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(end_s, int) or not 0 <= end_s <= SECONDS_MAX:
        return None
    return {"subject": str(told.get("subject", "")), "valid_until": _iso(end_s * 1000)}


def _urls(broker: BrokerPresence, owner: Owner) -> list[str]:
    """Where it serves, as clients write it; of a slave: where it would, port 0 for "any"."""
    served = broker.facts.get("urls")
    if isinstance(served, list) and served:
        return [str(url) for url in served]
    urls = []
    for url in owner.transport_urls:
        try:
            urls.append(reachable(url, owner.host))
        except ValueError:  # of another version
            urls.append(url)
    return urls


def _journal_size(log: SegmentLog) -> tuple[int, int]:
    """(segments, bytes), space reserved for the newest one included."""
    sizes = []
    try:
        for name in list_segments(log):
            try:
                sizes.append(log.size(name))
            except FileNotFoundError:
                continue  # deleted between the listing and the look
    except FileNotFoundError:
        return 0, 0
    return len(sizes), sum(sizes)


def _iso(wall_ms: int | None) -> str | None:
    return None if wall_ms is None else f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _print_store(facts: dict[str, Any]) -> None:
    master = facts["master"]
    silent = "" if facts["silent_s"] is None else f", silent for {duration_text(facts['silent_s'])}"
    if master is not None:
        who = _who(master) + (silent and f"{silent}: it confirms nothing")
    elif facts["successor"] is not None:
        who = f"none yet: {_who(facts['successor'])} takes over{silent}"
        if facts["successor"]["reading"] is not None:
            who += f": reads the journal, {reading_text(facts['successor']['reading'])}"
    elif facts["released"]:
        who = f"none: {facts['epoch_owner']} handed the store over"
    elif facts["lock"] == "held":
        who = "none yet: the lock is held, a broker is taking over"
    else:
        who = "none"
    click.echo(f"master   {who}")
    if master is not None:
        click.echo(f"serves   {', '.join(master['urls'])}")
        if master["addresses"] not in ([], master["urls"]):
            click.echo(f"         clients reach it at {', '.join(master['addresses'])}")
    if master is not None and master["certificate"] is not None:
        shown = master["certificate"]
        click.echo(f"TLS      {shown['subject']}, valid until {shown['valid_until'][:10]}")
    if facts["epoch"]:
        age = duration_text(max(0.0, time.time() - facts["since_wall_ms"] / 1000))
        since = wall_text(facts["since_wall_ms"])
        click.echo(f"epoch    {facts['epoch']}, since {since} ({age} ago): {facts['reason']}")
    click.echo(f"lock     {facts['lock']}" + (f", in {facts['locker']}" if facts["locker"] else ""))
    for server, why in facts["locker_servers"].items():
        click.echo(f"         {server} {f'does not answer: {why}' if why else 'answers'}")
    slaves = "\n         ".join(f"{_who(slave)}{_slave_text(slave)}" for slave in facts["slaves"])
    click.echo(f"slaves   {slaves or 'none: no broker would take over'}")
    if facts["slaves"] and all(slave["cannot_listen"] or slave["too_old"] for slave in facts["slaves"]):
        click.echo("         no slave could serve clients")
    for number, line in enumerate(_consoles([*([] if master is None else [master]), *facts["slaves"]])):
        click.echo(f"{'' if number else 'consoles':8} {line}")
    for number, gone in enumerate(facts["not_running"]):
        when = wall_text(gone["last_seen_wall_ms"]) if gone["last_seen_wall_ms"] else "at an unknown time"
        click.echo(f"{'' if number else 'gone':8} {_who(gone)}: does not run, last seen {when}")
    for difference in facts["options_differ"]:
        click.echo(f"options  differ: {difference['text']}")
    if facts["copies"] is not None:
        click.echo(f"copies   {_copies_text(facts['copies'])}")
        for each in facts["copies"]["seen"] or ():
            click.echo(f"         {_copy_text(each)}")
    journal = facts["journal"]
    click.echo(f"journal  {size_text(journal['bytes'])} in {journal['segments']} segments")
    full = ": the disk is full, the master rejects messages; acknowledgements go on" if facts["store_full"] else ""
    free = facts["free_bytes"]
    click.echo(f"free     {'unknown: this store cannot tell' if free is None else size_text(free)}{full}")


def _copy_text(copy: dict[str, Any]) -> str:
    lag = "" if copy["lag_bytes"] is None else f", lacks {size_text(copy['lag_bytes'])}"
    match copy["state"]:
        case "silent":
            return f"{copy['id']} has not answered for {duration_text(copy['silent_s'])}{lag}"
        case "gone":
            silent = duration_text(copy["silent_s"])
            return f"{copy['id']} is gone: the group goes on without it, and it has not answered for {silent}"
        case "behind":
            return f"{copy['id']} is behind for {duration_text(copy['behind_s'])}{lag}"
        case "filling":
            return f"{copy['id']} is filled, and does not count yet{lag}"
        case "spare":
            return f"{copy['id']} is a spare: it counts as soon as another one is lost"
    return f"{copy['id']} is level"


def _copies_text(copies: dict[str, Any]) -> str:
    counting, running = copies["counting"], copies["running"]
    if copies.get("blocked"):
        if not any(each["counts"] and each["state"] == "silent" for each in copies["seen"] or ()):
            return f"nothing is confirmed: too few copies count ({', '.join(counting)}): start another broker"
        return f"nothing is confirmed: {copies['needed']} of {', '.join(counting) or 'none'} must answer"
    silent = "".join(f"; {each} does not run" for each in counting if each not in running)
    joining = "".join(f"; {each} does not count" for each in running if each not in counting)
    return f"{copies['needed']} of {', '.join(counting) or 'none'} must have a write{silent}{joining}"


def _consoles(brokers: list[dict[str, Any]]) -> list[str]:
    """Each console with its brokers: one may be that of all brokers of its host."""
    found: dict[tuple[str, str], list[str]] = {}
    for broker in brokers:
        if url := broker["console"]:
            only = f", on host {broker['host']} only" if is_loopback(url) else ""
            found.setdefault((url, only), []).append(broker["name"])
    return [f"{url} ({', '.join(names)}{only})" for (url, only), names in found.items()]


def _who(broker: dict[str, Any]) -> str:
    preferred = f", priority {broker['priority']}" if broker["priority"] else ""
    return f"{broker['name']} (host {broker['host']}, pid {broker['pid']}{preferred})"


def _slave_text(slave: dict[str, Any]) -> str:
    why = f"; could not serve clients: {slave['cannot_listen']}" if slave["cannot_listen"] else ""
    old = "; too old to take over: upgrade it" if slave["too_old"] else ""
    passive = "; passive: `amq handover`, or the start of a broker, makes a master" if slave["passive"] else ""
    return _lag_text(slave) + why + old + passive


def _lag_text(slave: dict[str, Any]) -> str:
    if slave["followed"] is None:
        return ""
    messages = f"{slave['followed']['messages']:,} messages"
    if slave["lag_s"] is None:
        place = slave["followed"].get("place")
        return f", has read {messages} so far" + (f", up to {place}" if place else "")
    return f", up to date {duration_text(slave['lag_s'])} ago, {messages}"


# -- a URL -------------------------------------------------------------------------------------------------------------


def _of_url(url: str, login: str, passcode: str) -> list[dict[str, Any]]:
    uris = parse_url(url).uris
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
        return facts | {"state": "refused", "reason": "no program listens: a slave, or no broker"}
    except (OSError, AmqError, UnicodeError) as error:  # UnicodeError: the host's name cannot be one
        return facts | {"state": "unreachable", "reason": str(error)}
    if answer.command != "CONNECTED":
        return facts | {"state": "rejected", "reason": answer.headers.get("message", answer.command)}
    epoch = answer.headers.get("amq-epoch", "")
    return facts | {
        "state": "serving",
        "broker": answer.headers.get("amq-broker", ""),
        "epoch": int(epoch) if epoch.isdecimal() else None,
        "server": answer.headers.get("server", ""),
        "answered_ms": round((time.monotonic() - started) * 1000, 1),
    }


def _handshake(uri: BrokerUri, login: str, passcode: str) -> Frame:
    """The broker's answer to CONNECT. Raises OSError, ProtocolError."""
    deadline = time.monotonic() + uri.options.connect_timeout_ms / 1000
    headers = [("accept-version", "1.0,1.1,1.2"), ("host", uri.options.virtual_host or uri.host), ("heart-beat", "0,0")]
    if login:
        headers += [("login", login), ("passcode", passcode)]
    timeout_s = uri.options.connect_timeout_ms / 1000
    with socket.create_connection(uri.address, timeout_s) as plain, _secured(plain, uri) as sock:
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


def _secured(sock: socket.socket, uri: BrokerUri) -> socket.socket:
    """The socket itself, or TLS over it where the URI says so. Raises OSError, AmqError."""
    if not uri.tls:
        return sock
    try:
        return tls.client_context(uri.options).wrap_socket(sock, server_hostname=tls.server_name(uri))
    except ssl.SSLError as error:
        raise ConnectError(tls.reason_of(error, uri)) from error


def _print_url(brokers: list[dict[str, Any]]) -> None:
    rows = [
        (
            broker["url"],
            broker["state"],
            broker["broker"] or "-",
            broker["epoch"] if broker["epoch"] else "-",
            broker["server"] or broker["reason"],
        )
        for broker in brokers
    ]
    print_table(("url", "state", "broker", "epoch", ""), rows)
