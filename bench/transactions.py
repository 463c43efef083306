"""How long other clients wait while one client ends a very large transaction, or acknowledges many messages at once.

Two other clients, each in a separate process, send messages and wait for each receipt. The messages of one are not
persistent, so it waits for the event loop alone. Those of the other are persistent, so it waits for the journal too,
which writes one batch at a time; and a transaction is one record. The longest wait counts all sends that overlap the
time from the command to a second after its receipt.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

from rich.table import Table

from bench import brokers, cli, host
from bench.wire import WireConnection, WireError, encode

EXAMPLES = ("--quick", "--messages 1000000 --kind plain --kind acknowledge", "-o memoryLimit=4GiB")
TIMEOUT_S = 300.0
FRAMES = 500  # written at a time
SETTLE_S = 1.0  # before the command, and behind its receipt
PREFETCH = 100_000_000
Wait = tuple[float, float]  # (when it began, monotonic, and how long it was)


class EndedWork(NamedTuple):
    """What is prepared with `begin`, and ended with `end`, which is measured and waits for its receipt."""

    begin: Callable[[WireConnection, int], None]
    end: Callable[[WireConnection], None]


def send(connection: WireConnection, messages: int, destination: str, lines: str = "", transaction: str = "t") -> None:
    """Send messages in `transaction`, "" = in none. `{i}` in `lines` is the number of the message."""
    head = f"SEND\ndestination:{destination}\n" + (f"transaction:{transaction}\n" if transaction else "")
    for at in range(0, messages, FRAMES):
        numbers = range(at, min(at + FRAMES, messages))
        frames = [f"{head}{lines.format(i=i) if lines else ''}\nbody-{i:07}\0" for i in numbers]
        connection.socket.sendall("".join(frames).encode())
    ask(connection, "SEND", {"destination": "/queue/mark", "persistent": "false"})  # all before it is taken in


def ask(connection: WireConnection, command: str, headers: dict[str, object]) -> None:
    connection.send(command, headers | {"receipt": "done"})
    connection.receipt("done", TIMEOUT_S)


def sends(destination: str = "/queue/bulk", lines: str = "") -> Callable[[WireConnection, int], None]:
    def begin(connection: WireConnection, messages: int) -> None:
        connection.send("BEGIN", {"transaction": "t"})
        send(connection, messages, destination, lines)

    return begin


def consumed(destination: str = "/queue/bulk") -> Callable[[WireConnection, int], None]:
    """Receives the messages and acknowledges them in a transaction."""

    def begin(connection: WireConnection, messages: int) -> None:
        ids = delivered(connection, messages, destination, "client-individual")
        connection.send("BEGIN", {"transaction": "t"})
        for at in range(0, messages, FRAMES):
            acks = [encode("ACK", {"id": id, "transaction": "t"}) for id in ids[at : at + FRAMES]]
            connection.socket.sendall(b"".join(acks))
        ask(connection, "SEND", {"destination": "/queue/mark", "persistent": "false"})

    return begin


def delivered(connection: WireConnection, messages: int, destination: str, ack: str) -> list[str]:
    with WireConnection(connection.port, timeout_s=TIMEOUT_S) as sender:
        send(sender, messages, destination, transaction="")
        ask(sender, "SEND", {"destination": "/queue/mark"})
    connection.send(
        "SUBSCRIBE",
        {
            "id": "s",
            "destination": destination,
            "ack": ack,
            "activemq.prefetchSize": PREFETCH,
        },
    )
    ids: list[str] = []
    while len(ids) < messages:
        ids += [frame.headers["ack"] for frame in connection.read(TIMEOUT_S)]
    return ids


def durables(connection: WireConnection, messages: int) -> None:
    for number in range(3):
        with WireConnection(connection.port, timeout_s=TIMEOUT_S) as subscriber:
            ask(
                subscriber,
                "SUBSCRIBE",
                {
                    "id": "s",
                    "destination": "/topic/bulk",
                    "activemq.subscriptionName": f"d{number}",
                    "ack": "client",
                },
            )
    sends("/topic/bulk")(connection, messages)


def prepared(connection: WireConnection, messages: int) -> None:
    sends()(connection, messages)
    ask(connection, "COMMIT", {"transaction": "t", "phase": "prepare", "xid": "x"})


def cumulative(connection: WireConnection, messages: int) -> None:
    connection.send("BEGIN", {"transaction": "last"})  # so that `end` may end it
    connection.last = delivered(connection, messages, "/queue/bulk", "client")[-1]  # type: ignore[attr-defined]


def command(name: str, **headers: object) -> Callable[[WireConnection], None]:
    return lambda connection: ask(connection, name, {"transaction": "t"} | headers)


def two_phase(name: str) -> Callable[[WireConnection], None]:
    return lambda connection: ask(connection, name, {"xid": "x"})


def acknowledge(connection: WireConnection) -> None:
    ask(connection, "ACK", {"id": connection.last})  # type: ignore[attr-defined]


def close(connection: WireConnection) -> None:
    port = connection.port
    connection.socket.shutdown(socket.SHUT_RDWR)  # the other processes have it too
    connection.close()
    with WireConnection(port, timeout_s=TIMEOUT_S) as other:
        ask(other, "SEND", {"destination": "/queue/mark", "persistent": "false"})


HEADERS = "colour:blue\nnumber:n{i}\n"
COMMIT, ABORT = command("COMMIT"), command("ABORT")
KINDS = {
    "plain": EndedWork(sends(), COMMIT),
    "own headers": EndedWork(sends(lines=HEADERS), COMMIT),
    "ids": EndedWork(sends(lines="_AMQ_DUPL_ID:d{i}\n"), COMMIT),
    "not persistent": EndedWork(sends(lines="persistent:false\n" + HEADERS), COMMIT),
    "topic, 3 durable": EndedWork(durables, COMMIT),
    "composite": EndedWork(sends("/queue/a,/queue/b", HEADERS), COMMIT),
    "acknowledgements": EndedWork(consumed(), COMMIT),
    "abort": EndedWork(sends(lines=HEADERS), ABORT),
    "abort acknowledgements": EndedWork(consumed(), ABORT),
    "connection ends": EndedWork(sends(lines=HEADERS), close),
    "consumer ends": EndedWork(consumed(), close),
    "one acknowledgement": EndedWork(cumulative, acknowledge),
    "prepare": EndedWork(sends(lines=HEADERS), command("COMMIT", phase="prepare", xid="x")),
    "prepare acks": EndedWork(consumed(), command("COMMIT", phase="prepare", xid="x")),
    "commit prepared": EndedWork(prepared, two_phase("COMMIT")),
    "roll back prepared": EndedWork(prepared, two_phase("ABORT")),
}


def probe(port: int, persistent: bool, pipe: Pipe) -> None:
    """Send and wait until the pipe says something; then say how long each wait was."""
    waits: list[Wait] = []
    headers = {"destination": f"/queue/probe.{persistent}", "persistent": str(persistent).lower()}
    with WireConnection(port, timeout_s=TIMEOUT_S) as connection:
        while not pipe.poll():
            began_s = time.monotonic()
            ask(connection, "SEND", dict(headers))
            waits.append((began_s, time.monotonic() - began_s))
    pipe.send(waits)


def longest_s(waits: Iterable[Wait], begin_s: float, end_s: float) -> float:
    """Of those that overlap that time."""
    return max((wait for began_s, wait in waits if began_s < end_s and began_s + wait > begin_s), default=0.0)


def measure(kind: str, messages: int, directory: str | None, options: dict[str, str]) -> dict[str, Any]:
    """One broker, one transaction."""
    limits = {"memoryLimit": "8GiB", "maxTransactionSize": "2GiB"} | options
    work = KINDS[kind]
    with brokers.BrokerGroup("amq", directory=directory, options=limits) as group:
        broker = group.wait_master()
        probes, context = [], multiprocessing.get_context("fork")
        with WireConnection(broker.port, timeout_s=TIMEOUT_S) as connection:
            for persistent in (False, True):
                here, there = context.Pipe()
                process = context.Process(target=probe, args=(broker.port, persistent, there), daemon=True)
                process.start()
                probes.append((here, process))
            first_s = time.monotonic()
            work.begin(connection, messages)
            time.sleep(SETTLE_S)
            begin_s = time.monotonic()
            work.end(connection)
            done_s = time.monotonic()
            time.sleep(SETTLE_S)  # what follows the receipt
            end_s = time.monotonic()
        waits = []
        for here, process in probes:
            here.send("enough")
            waits.append(here.recv())
            process.join()
    return {
        "kind": kind,
        "messages": messages,
        "receipt_s": done_s - begin_s,
        "before_s": longest_s(waits[0], first_s, begin_s),
        "longest_s": longest_s(waits[0], begin_s, end_s),
        "longest_persistent_s": longest_s(waits[1], begin_s, end_s),
    }


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table(title=f"longest wait of other clients in seconds, {results[0]['messages']:,} messages")
    for heading in ("", "receipt", "while it is sent", "behind the command", "persistent"):
        shown.add_column(heading, justify="right" if heading else "left")
    for each in results:
        figures = [each[name] for name in ("receipt_s", "before_s", "longest_s", "longest_persistent_s")]
        shown.add_row(each["kind"], *(f"{figure:.3f}" for figure in figures))
    return shown


def main() -> None:
    parser = cli.parser("transactions", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--messages", type=int, default=300_000, help="of one transaction (default %(default)s)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one (repeatable)")
    args = parser.parse_args()
    cli.terminate_on_signal()
    messages = 20_000 if args.quick else args.messages
    results = []
    try:
        for kind in args.kind or KINDS:
            cli.progress(kind)
            results.append(measure(kind, messages, args.dir, cli.amq_options(args)))
            cli.progress(str(results[-1]))
    except (WireError, OSError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"host": host.describe(args.dir), "transactions": results}, table(results))


if __name__ == "__main__":
    main()
