"""Runs orders.py: a cluster of three nodes and two stores on this host, kill -9 of a node when the program asks for it.

    python examples/cluster/three_nodes.py

Exit code 0 if the program found its numbers right. No process and no file is left behind.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from amq.cli.demo_brokers import SERVING, DemoNode, free_port, leashed
from amq.core.errors import AmqError

ORDERS = Path(__file__).resolve().parent / "orders.py"
NODES, STORES = ("a", "b", "c"), 2
CUE = "kill the node now: "
LIMIT_S = 120.0  # a program that takes longer is ended


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: several threads talk


def until(nodes: list[DemoNode], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        for node in nodes:
            node.check()
        if time.monotonic() > deadline:
            state = "; ".join(f"{node.name} is {node.role}, last said {node.last_words()}" for node in nodes)
            raise AmqError(f"no {what} within {LIMIT_S:g} s: {state}", code="DEMO_FAILED")
        time.sleep(0.02)


def is_whole(nodes: list[DemoNode]) -> bool:
    """Does each node serve clients, and is each the master or a slave of each store?"""
    ready = all(node.role == SERVING and len(node.serves) + len(node.follows) == STORES for node in nodes)
    return ready and sum(len(node.serves) for node in nodes) == STORES


def play(nodes: list[DemoNode]) -> bool:
    """Run the program. Is its exit code 0, and was the node killed for which it asked? That one is to serve a store."""
    masters_first = sorted(nodes, key=lambda node: len(node.serves), reverse=True)
    url = f"failover:({','.join(node.url for node in masters_first)})?randomize=false"
    say(f"\n== orders.py {url}")
    process = subprocess.Popen(leashed([sys.executable, str(ORDERS), url]), stdout=subprocess.PIPE, text=True)
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    killed = False
    try:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                say(f"  {line.rstrip()}")
                if line.startswith(CUE):
                    victim = next(node for node in nodes if node.url == line.removeprefix(CUE).strip())
                    served = victim.detail or "no store"
                    say(f"nodes: kill -9 {victim.name} with all its processes, the master of {served}")
                    victim.kill()
                    killed = True
        return process.wait() == 0 and killed
    finally:
        limit.cancel()
        process.kill()
        process.wait()


def run(directory: str) -> int:
    cluster = str(Path(directory) / "cluster")
    init = [sys.executable, "-P", "-m", "amq", "cluster", "init", "--cluster", cluster, "--stores", str(STORES)]
    subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
    ports = STORES + 1  # of a node: that of its gateway, then one for each store
    first = free_port(len(NODES) * ports)
    nodes = [
        DemoNode(
            name,
            first + place * ports,
            cluster,
            str(Path(directory) / f"{name}.log"),
            lambda node, store, reason: say(f"nodes: {node.name} is the master of {store}: {reason}"),
        )
        for place, name in enumerate(NODES)
    ]
    try:
        for node in nodes:
            node.start()
        until(nodes, lambda: is_whole(nodes), "cluster in which each store has a master and each node is ready")
        right = play(nodes)
    finally:
        for node in nodes:
            node.end()
    say("\nthe program found its numbers right" if right else "\nFAILED")
    return 0 if right else 1


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="amq-examples-") as directory:
            return run(directory)
    except (AmqError, subprocess.CalledProcessError) as error:
        say(f"the cluster failed: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
