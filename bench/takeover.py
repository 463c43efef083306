"""How long nobody is served when the master is killed with -9, hands over, or hangs, while messages wait.

A consumer and a producer, each a separate process, are connected to the master. It is killed; both look for the new
one on every port of the group without pause. Measured from just before the kill: until the consumer holds a message of
the new master, and until the producer holds a receipt of it. The killed broker comes back as a slave, and it is the
next one's turn: the backlog stays as it was.

`--how handover`: `amq handover` in place of the kill. The clients are served until the master closes their connections,
so the times count from there. `--how hung`: the master is stopped (SIGSTOP) and keeps its lock; clients leave it at
once.

`--client jms`: a JMS consumer and a JMS producer with a failover URL on the unmodified ActiveMQ client, instead of our
own that try without pause. The client waits 10 ms before its first try, then twice as long before each; `--failover
maxReconnectDelay=100` bounds that.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from bench import brokers, cli, host, jvm
from bench.jms_failover import JmsProbe
from bench.load import Load, LoadError, run
from bench.stats import Spread, spread
from bench.wire import WireConnection, WireError

QUEUE = "/queue/takeover"
PROBE_QUEUE = "/queue/takeover.probe"
GIVE_UP_S = 120.0
RETRY_PAUSE_S = 0.002
CONNECT_TIMEOUT_S = 0.5
TARGET_S = 1.0
HUNG_S = 10.0  # hungMasterTimeout, unless -o says otherwise
EXAMPLES = (
    "--quick",
    "--messages 100000 --keep-alive-ms 5000 --peer activemq",
    "--messages 100000 --keep-alive-ms 2000 --how handover",
    "--slaves 2 --repeat 10 --json takeover.json",
    "--client jms --messages 100000 --peer activemq",
)


def connect(ports: Sequence[int], deadline_s: float) -> WireConnection:
    """A connection to whichever port answers first, trying all in turn."""
    while True:
        for port in ports:
            with contextlib.suppress(OSError, WireError):
                return WireConnection(port, timeout_s=CONNECT_TIMEOUT_S)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nobody answers on {list(ports)}")
        time.sleep(RETRY_PAUSE_S)


def first_message(connection: WireConnection, timeout_s: float = GIVE_UP_S) -> None:
    """Subscribe and wait for a message, which is not acknowledged: the backlog stays."""
    headers = {"id": 0, "destination": QUEUE, "ack": "client-individual"}
    connection.send("SUBSCRIBE", headers | {"activemq.prefetchSize": 1, "prefetch-count": 1})
    while connection.next_frame(timeout_s).command != "MESSAGE":
        pass


def first_receipt(connection: WireConnection) -> None:
    """Send one durable message and wait for its receipt."""
    connection.send("SEND", {"destination": PROBE_QUEUE, "persistent": "true", "receipt": "1"}, b"x" * 1024)
    connection.receipt("1", GIVE_UP_S)


def _probe(
    goal: Callable[[WireConnection], None], ports: Sequence[int], pipe: multiprocessing.connection.Connection
) -> None:
    """Reach `goal` on the master, say so, wait until that connection breaks, reach it on the next master, say when."""
    try:
        with connect(ports, time.monotonic() + GIVE_UP_S) as connection:
            goal(connection)
            pipe.send("ready")
            with contextlib.suppress(OSError, WireError):
                while not pipe.poll(0):  # told that the master hangs
                    with contextlib.suppress(TimeoutError):
                        connection.next_frame(0.02)
        lost_s = time.monotonic()
        while True:
            with contextlib.suppress(OSError, WireError), connect(ports, lost_s + GIVE_UP_S) as connection:
                connected_s = time.monotonic()
                goal(connection)
                pipe.send((lost_s, connected_s, time.monotonic()))
                return
            if time.monotonic() > lost_s + GIVE_UP_S:
                raise TimeoutError("the new master answers but does not serve")
    except (OSError, WireError) as error:
        pipe.send(f"{goal.__name__}: {error}")


def _receive(pipe: multiprocessing.connection.Connection) -> Any:
    if not pipe.poll(2 * GIVE_UP_S):
        raise brokers.BrokerProcessError(f"no answer from a probe within {2 * GIVE_UP_S} s")
    answer = pipe.recv()
    if isinstance(answer, str) and answer != "ready":
        raise brokers.BrokerProcessError(answer)
    return answer


def one_takeover(group: brokers.BrokerGroup, how: str = "kill") -> dict[str, float]:
    """End the mastership of the master of `group`; seconds from then to the first connection, message and receipt of
    the next one. "Then" is the kill or stop, or, of a hand-over, the moment at which clients lost their connections.
    """
    context = multiprocessing.get_context("fork")
    pipes, probes = [], []
    try:
        for goal in (first_message, first_receipt):
            ours, theirs = context.Pipe()
            probes.append(context.Process(target=_probe, args=(goal, group.ports, theirs), daemon=True))
            probes[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            _receive(pipe)
        master = group.wait_master()
        ended_s = time.monotonic()
        _END[how](master)
        if how == "hung":
            for pipe in pipes:
                pipe.send("leave it")
        (lost_s, connected_s, message_s), (_, _, receipt_s) = [_receive(pipe) for pipe in pipes]
    finally:
        for probe in probes:
            probe.kill()
            probe.join()
            probe.close()
        for pipe in pipes:
            pipe.close()
    if how == "handover":
        ended_s = lost_s
    if how == "hung":
        master.signal(signal.SIGCONT)
    return {
        "connected_s": connected_s - ended_s,
        "first_message_s": message_s - ended_s,
        "first_receipt_s": receipt_s - ended_s,
    }


def one_jms_takeover(group: brokers.BrokerGroup, how: str, query: str = "") -> dict[str, float]:
    """The same for JMS clients with a failover URL, which has the options `query`."""
    queues = [queue.removeprefix("/queue/") for queue in (QUEUE, PROBE_QUEUE)]
    with contextlib.closing(JmsProbe(group.openwire_ports, *queues, query)) as probe:
        probe.ready()
        master = group.wait_master()
        ended_s = time.monotonic()
        _END[how](master)
        times_s = probe.times_s()
    if how == "handover":
        ended_s = times_s["lost"]
    return {
        "connected_s": times_s["connected"] - ended_s,
        "first_message_s": times_s["message"] - ended_s,
        "first_receipt_s": times_s["receipt"] - ended_s,
    }


def _hand_over(master: brokers.BrokerProcess) -> None:
    command = [sys.executable, "-m", "amq", "handover", "--store", str(master.store)]
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        done = subprocess.run(command, cwd=brokers.ROOT, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        if "has not caught up" not in done.stderr or time.monotonic() > deadline:
            raise brokers.BrokerProcessError(f"amq handover: {done.stderr}")


_END: dict[str, Callable[[brokers.BrokerProcess], None]] = {
    "kill": lambda master: master.kill(),
    "handover": _hand_over,
    "hung": lambda master: master.signal(signal.SIGSTOP),
}


def measure(
    kind: str,
    messages: int,
    repeat: int,
    slaves: int,
    keep_alive_ms: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
    how: str = "kill",
    jms: Callable[[brokers.BrokerGroup, str], dict[str, float]] | None = None,
    ready: bool = False,
) -> dict[str, Any]:
    """Spreads of the three times over `repeat` takeovers with `messages` of 1 KiB waiting. `jms`: what watches one with
    JMS clients. `ready`: each slave has caught up before its master dies."""
    one = jms or one_takeover
    group = brokers.BrokerGroup(
        kind, slaves + 1, keep_alive_ms=keep_alive_ms, directory=directory, options=options, openwire=one is jms
    )
    progress(f"{kind}: starting {slaves + 1} brokers")
    with group:
        progress(f"{kind}: sending {messages} messages")
        run(Load(group.wait_master().port, producers=4, messages=messages, window=1000, mode="send", destination=QUEUE))
        times = []
        for number in range(repeat):
            progress(f"{kind}: {how} {number + 1} of {repeat}")
            for broker in group.brokers if ready else ():
                broker.wait_ready()
            times.append(one(group, how))
            for broker in group.brokers:
                if not broker.alive:
                    broker.start()
                    broker.wait_slave()
    return {
        "kind": kind,
        "how": how,
        "client": "stomp" if jms is None else "jms",
        "messages": messages,
        "keep_alive_ms": keep_alive_ms,
        "times": times,
        "spread": {name: spread([time[name] for time in times])._asdict() for name in times[0]},
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="seconds until the next master serves, median (min–max)")
    for heading in ("", "client", "how", "backlog", "keep-alive ms", "connected", "first message", "first receipt"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for result in results:
        spreads = [Spread(**result["spread"][name]) for name in ("connected_s", "first_message_s", "first_receipt_s")]
        cells = [f"{times.median:.2f} ({times.low:.2f}–{times.high:.2f})" for times in spreads]
        shown.add_row(
            result["kind"],
            result["client"],
            result["how"],
            f"{result['messages']:,}",
            str(result["keep_alive_ms"]),
            *cells,
        )
    return shown


def main() -> None:
    parser = cli.parser("takeover", __doc__, EXAMPLES)
    parser.add_argument("--messages", type=int, default=100_000, help="backlog of 1 KiB each (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="kills (default %(default)s)")
    parser.add_argument("--slaves", type=int, default=1, help="brokers that wait (default %(default)s)")
    parser.add_argument("--how", choices=list(_END), default="kill", help="how a mastership ends (default %(default)s)")
    parser.add_argument("--keep-alive-ms", type=int, default=5000, help="lockKeepAlivePeriod (default %(default)s)")
    parser.add_argument("--client", choices=["stomp", "jms"], default="stomp", help="who waits (default %(default)s)")
    parser.add_argument("--failover", default="", metavar="QUERY", help="options for the failover URL of JMS clients")
    args = parser.parse_args()
    if args.client == "jms" and args.how == "hung":
        parser.error("a JMS client does not leave a master that hangs before 30 s: measure --how kill or handover")
    if args.peer == "artemis":
        parser.error("Artemis has a primary and a backup in place of equal brokers: name another peer")
    jms = functools.partial(one_jms_takeover, query=args.failover) if args.client == "jms" else None
    cli.terminate_on_signal()
    messages, repeat = (2000, 2) if args.quick else (args.messages, args.repeat)
    results = []
    try:
        for kind in cli.kinds(args) if args.how == "kill" else ["amq"]:
            options = cli.amq_options(args) if kind == "amq" else {}
            results.append(
                measure(
                    kind,
                    messages,
                    repeat,
                    args.slaves,
                    args.keep_alive_ms,
                    args.dir,
                    options,
                    cli.progress,
                    args.how,
                    jms,
                )
            )
    except (LoadError, brokers.BrokerProcessError, jvm.JavaError) as error:
        sys.exit(f"failed: {error}")
    ours = [result for result in results if result["kind"] == "amq"]
    period_s = args.keep_alive_ms / 1000
    target_s = {"kill": TARGET_S, "handover": 0.5, "hung": max(HUNG_S, 5 * period_s) + period_s + 1.0}[args.how]
    slow = [result for result in ours if result["spread"]["first_message_s"]["median"] > target_s]
    cli.show(args, {"host": host.describe(args.dir), "takeovers": results}, table(results))
    if slow:
        sys.exit(f"target missed: the first message is to come within {target_s:g} s")


if __name__ == "__main__":
    main()
