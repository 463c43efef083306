"""`amq handover` and `amq stop`: orders to a broker through the store, from any host that sees it."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from amq.cli.options import store_of_group_option, valued
from amq.cli.output import examples, json_option, print_json
from amq.cli.store import read_status, store_of
from amq.core.errors import AmqError
from amq.store.orders import HAND_OVER, OPERATOR, STOP, TAKE_OVER, WITHDRAWN, Order, OrderAnswer, give
from amq.store.presence import BrokerPresence, read_presence
from amq.store.status import StoreStatus

POLL_S = 0.05
T = TypeVar("T")
WAIT_S = 30.0
_store = store_of_group_option
_wait = valued(
    "--wait",
    "wait_s",
    type=click.FloatRange(0.1, 86_400),
    default=WAIT_S,
    help="How long to wait until it is done; then the order is withdrawn.",
)


class OrderError(AmqError):
    """The order was refused, or is not carried out in time."""

    code = "ORDER_REFUSED"


@click.command(
    epilog=examples(
        "amq handover --store /mnt/shared/amq",
        "amq handover --store /mnt/shared/amq --to b --wait 60",
        "amq handover --store /mnt/shared/amq --json | jq -r .master",
    )
)
@_store
@click.option("--to", metavar="NAME", default="", help="The broker that shall be master. Default: the best slave.")
@_wait
@json_option
def handover(store: str, to: str, wait_s: float, as_json: bool) -> None:
    """Make another broker of the group the master.

    The master first asks the slave whether it has caught up and can listen. Then it commits what came in, closes its
    clients' connections, and leaves the store to that slave. It stays in the group as a slave. Failover clients go on
    with the new master. Without --to the ready slave with the highest priority is asked first.

    Where the last master stopped with failoverOnShutdown = false, this command makes a waiting slave the master.

    Exit code 0: another broker serves. 7: no slave can take over, with the reason. 1: not done within --wait.
    """
    started = time.monotonic()
    before = read_status(store)
    master = before.master
    if master is not None and to == master.name:
        facts = {"before": to, "master": to, "epoch": before.epoch.number if before.epoch else 0, "seconds": 0.0}
        _print(facts, f"{to} is the master already", as_json)
        return
    name, epoch = hand_over(store, to, wait_s)
    seconds = round(time.monotonic() - started, 3)
    facts = {"before": master.name if master else None, "master": name, "epoch": epoch, "seconds": seconds}
    _print(facts, f"{name} is master now, epoch {epoch}, after {seconds:.1f} s", as_json)


def hand_over(store: str, to: str, wait_s: float) -> tuple[str, int]:
    """Make another broker the master, `to` where it is given. Returns its name and epoch. Raises OrderError."""
    before = read_status(store)
    master = before.master
    other, action = (master, HAND_OVER) if master is not None else (_waiting(before, to, store), TAKE_OVER)
    order = _order(other, action, to)
    give(store_of(store).board, other.name, order)
    found = _wait_until(lambda: _new_master(store, before, other, order), wait_s)
    if found is None:
        _withdraw(store, other)
        raise OrderError(_unanswered(store, other, order, wait_s), code="ORDER_TIMEOUT")
    name, epoch = found
    if to and name != to:
        raise OrderError(f"{name} is master now, not {to}: it was quicker to get the lock", code="ORDER_TIMEOUT")
    return name, epoch


@click.command(
    epilog=examples(
        "amq stop --store /mnt/shared/amq --name a",
        "amq stop --store /mnt/shared/amq --name b --wait 60 --json",
    )
)
@_store
@click.option("--name", metavar="NAME", required=True, help="The broker that shall end.")
@_wait
@json_option
def stop(store: str, name: str, wait_s: float, as_json: bool) -> None:
    """Stop a broker of the group, on whatever host it runs.

    The broker ends as on SIGTERM: a master commits what came in and leaves the store to a slave, unless its option
    failoverOnShutdown is false. A service manager may start it again: the unit in conf/amq.service does not.

    Exit code 0: it has ended, or did not run. 1: not done within --wait, or no broker ever had that name.
    """
    started = time.monotonic()
    read_status(store)
    broker = next((each for each in _running(store) if each.name == name), None)
    if broker is None:
        if name not in {posted.name for posted in store_of(store).board.seats(held=False)}:
            names = ", ".join(each.name for each in _running(store)) or "none"
            raise OrderError(f"no broker {name!r} was ever on this store; running: {names}", code="BROKER_UNKNOWN")
        _print({"name": name, "stopped": False, "seconds": 0.0}, f"{name} does not run", as_json)
        return
    order = _order(broker, STOP)
    give(store_of(store).board, name, order)
    if _wait_until(lambda: name not in {each.name for each in _running(store)} or None, wait_s) is None:
        _withdraw(store, broker)
        raise OrderError(_unanswered(store, broker, order, wait_s), code="ORDER_TIMEOUT")
    seconds = round(time.monotonic() - started, 3)
    _print({"name": name, "stopped": True, "seconds": seconds}, f"{name} has stopped, after {seconds:.1f} s", as_json)


# -- orders ------------------------------------------------------------------------------------------------------------


def _order(broker: BrokerPresence, action: str, to: str = "") -> Order:
    if broker.owner is None:
        raise OrderError(f"{broker.name} is just starting: try again", code="ORDER_TIMEOUT")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this user id, as in many containers
        user = f"uid {os.getuid()}"
    return Order(secrets.token_hex(8), broker.owner.uuid, action, to, f"{user}@{socket.gethostname()}", OPERATOR)


def _withdraw(store: str, broker: BrokerPresence) -> None:
    give(store_of(store).board, broker.name, _order(broker, WITHDRAWN))


def _wait_until(found: Callable[[], T | None], wait_s: float) -> T | None:
    """The result of `found()`, as soon as there is one; None after `wait_s`."""
    until = time.monotonic() + wait_s
    while (result := found()) is None and time.monotonic() < until:
        time.sleep(POLL_S)
    return result


def _new_master(store: str, before: StoreStatus, ordered: BrokerPresence, order: Order) -> tuple[str, int] | None:
    """Name and epoch of a master that was none before. Raises OrderError where the order is refused."""
    now = read_status(store)
    was = before.epoch.number if before.epoch is not None else 0
    if now.master is not None and now.epoch is not None and now.epoch.number > was:
        return now.master.name, now.epoch.number
    answer = _answer(now.brokers, ordered)
    if (answer.id, answer.state) == (order.id, "refused"):
        raise OrderError(f"{ordered.name} refused: {answer.reason}")
    return None


def _waiting(before: StoreStatus, to: str, store: str) -> BrokerPresence:
    """The slave that shall take over a store that has no master."""
    if before.lock == "held":
        successor = before.successor
        who = successor.name if successor is not None else "a broker"
        raise OrderError(f"{who} takes over just now: wait until `amq status --store {store}` shows a master")
    if to:
        found = next((broker for broker in before.brokers if broker.name == to), None)
        if found is None:
            raise OrderError(f"no broker {to!r} runs on this store: start it")
        return found
    if not before.brokers:
        raise OrderError("no broker runs on this store: start one")
    ready = [broker for broker in before.brokers if not broker.not_ready]
    if not ready:
        raise OrderError("; ".join(f"{broker.name} {broker.not_ready}" for broker in before.brokers))
    return max(ready, key=lambda broker: broker.priority)


def _unanswered(store: str, broker: BrokerPresence, order: Order, wait_s: float) -> str:
    """Why the order was not carried out, as far as can be seen."""
    found = _answer(_running(store), broker)
    owner = broker.owner
    assert owner is not None
    if found.id != order.id:
        return (
            f"{broker.name} has not read the order within {wait_s:g} s: `amq status --store {store}` tells whether it "
            f"is silent. Its process is {owner.pid} on host {owner.host}"
        )
    return f"{broker.name} says {found.state!r}, and it was not done within {wait_s:g} s: see its log"


def _answer(brokers: list[BrokerPresence], broker: BrokerPresence) -> OrderAnswer:
    now = next((each for each in brokers if each.name == broker.name), None)
    return OrderAnswer.from_json(now.facts.get("answer")) if now is not None else OrderAnswer()


# -- the store ---------------------------------------------------------------------------------------------------------


def _running(store: str) -> list[BrokerPresence]:
    return read_presence(store_of(store).board)


def _print(facts: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(text)
