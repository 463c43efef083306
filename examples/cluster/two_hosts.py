"""Colocation and scale-down: two nodes back each other up, one dies, and then the cluster shrinks to one store.

    python examples/cluster/two_hosts.py

Each node is master of one store and slave of the other. Node b is killed, and a serves both; b comes back, and takes
its store again. Then b is to go for good: its store gives all that it has to the other one, while clients are served,
and b is drained and stopped. Exit code 0 if each message is there, once and in order. Nothing is left behind.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from three_nodes import say, until

import amq
from amq.cli.demo_brokers import SERVING, DemoNode, free_port
from amq.core.errors import AmqError

QUEUES, EACH = [f"orders.{number}" for number in range(6)], 50


def cluster_command(cluster: str, *words: str) -> str:
    """The output of `amq cluster …`."""
    command = [sys.executable, "-P", "-m", "amq", "cluster", words[0], "--cluster", cluster, *words[1:]]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def send(url: str) -> None:
    with amq.connect(url) as connection, connection.session() as session:
        for queue in QUEUES:
            producer = session.producer(f"/queue/{queue}")
            for number in range(EACH):
                producer.send(str(number), wait=False)
            producer.flush()


def received(url: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with amq.connect(url) as connection, connection.session() as session:
        for queue in QUEUES:
            session.producer(f"/queue/{queue}").send("end")
            consumer, texts = session.consumer(f"/queue/{queue}"), found.setdefault(queue, [])
            while (message := consumer.receive(timeout=60)) is not None and message.text != "end":
                texts.append(str(message.text))
                message.ack()
    return found


def serves(node: DemoNode, count: int, slaves: int) -> bool:
    return node.role == SERVING and (len(node.serves), len(node.follows)) == (count, slaves)


def play(cluster: str, a: DemoNode, b: DemoNode) -> bool:
    nodes, url = [a, b], f"failover:({a.url},{b.url})"
    for node in nodes:
        node.start()
    until(nodes, lambda: serves(a, 1, 1) and serves(b, 1, 1), "node that is master of one store and slave of the other")
    send(url)
    say(f"{EACH * len(QUEUES)} messages sent; kill -9 b, the master of {b.detail}")
    b.kill()
    until([a], lambda: len(a.serves) == 2, "node that serves both stores")
    say("a serves both stores; b comes back")
    b.start()
    until(nodes, lambda: serves(a, 1, 1) and serves(b, 1, 1), "return of the store to b")
    (leaving,), (staying,) = b.serves, a.serves
    say(f"b goes for good: remove-store {leaving} --to {staying}, then drain b")
    say(cluster_command(cluster, "remove-store", leaving, "--to", staying))
    say(cluster_command(cluster, "drain", "b"))
    b.end()
    found = received(a.url)
    say(f"{sum(map(len, found.values()))} messages received from {staying}")
    return found == {queue: [str(number) for number in range(EACH)] for queue in QUEUES}


def run(directory: str) -> int:
    cluster = str(Path(directory) / "cluster")
    cluster_command(cluster, "init", "--stores", "2")
    first = free_port(6)  # of a node: that of its gateway, then one for each store
    a, b = (
        DemoNode(name, first + 3 * place, cluster, str(Path(directory) / f"{name}.log"), lambda *_: None)
        for place, name in enumerate("ab")
    )
    try:
        right = play(cluster, a, b)
    finally:
        a.end()
        b.end()
    say("right: each message is there, once and in order" if right else "FAILED")
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
