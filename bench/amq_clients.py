"""The soak's producers and consumers once more, on `amq.connect`: is its failover as good as our promises?

They write the same history as the raw ones in `bench.clients`, with 0 for the connection: which one carried what is the
client's secret, and the rules that need to know it leave these workers out.
"""

from __future__ import annotations

import time
from pathlib import Path

import amq
from amq.client.errors import DeliveryLostError
from bench.clients import Scoreboard, WorkerPlan, body_of
from bench.history import HistoryWriter

BATCH_MAX = 32
RECEIVE_S = 0.1


def url_of(plan: WorkerPlan) -> str:
    hosts = ",".join(f"stomp://127.0.0.1:{port}" for port in plan.ports)
    beat = f"nested.heartBeat={plan.heartbeat_ms}&nested.connectTimeout={plan.heartbeat_ms}"
    return f"failover:({hosts})?{beat}{plan.options}"


def produce(plan: WorkerPlan, board: Scoreboard, history: HistoryWriter) -> None:
    """Batches with `wait=False`, each followed by `flush`."""
    start_s, serial = time.monotonic(), 0
    with amq.connect(url_of(plan)) as connection, connection.session() as session:
        producer = session.producer(plan.queue)
        while not board.stop_producing.value:
            due = int((time.monotonic() - start_s) * plan.per_s) - serial
            if due <= 0:
                time.sleep(1 / plan.per_s)
                continue
            batch = [f"{plan.worker}-{serial + number:08d}" for number in range(1, min(due, BATCH_MAX) + 1)]
            serial += len(batch)
            for message in batch:
                history.add("send", 0, message)
                board.touched[plan.index] += 1
                producer.send(body_of(message), wait=False, duplicate_id=f"{plan.seed:x}-{message}")
            producer.flush()
            for message in batch:
                history.add("sent", 0, message)
                board.confirmed[plan.index] += 1


def consume(plan: WorkerPlan, board: Scoreboard, history: HistoryWriter) -> None:
    """Every message, in mode `client` every batch of what is there, is acknowledged and the confirmation awaited."""
    done: set[str] = set()
    unknown: set[str] = set()
    held: list[tuple[str, amq.Message]] = []
    with amq.connect(url_of(plan)) as connection, connection.session(ack=plan.ack) as session:
        consumer = session.consumer(plan.queue)
        while True:
            received = consumer.receive(0 if held else RECEIVE_S)
            if received is not None:
                message = received.body.partition(b"|")[0].decode(errors="replace")
                history.add("recv", 0, message, received.id)
                if received.body != body_of(message):
                    history.add("bad", 0, message, f"{len(received.body)} bytes")
                board.touched[plan.index] += 1
                unknown.discard(message)
                held.append((message, received))
                if plan.ack == "client" and len(held) < BATCH_MAX:
                    continue
            elif not held and board.stop_consuming.value:
                return
            if held:
                names = [message for message, _ in held]
                for message in names:
                    history.add("ack", 0, message)
                try:
                    held[-1][1].ack(wait=True)
                except DeliveryLostError:
                    unknown.update(names)
                else:
                    for message in names:
                        history.add("acked", 0, message)
                    done.update(names)
                held.clear()
                board.confirmed[plan.index] = len(done)
                board.unknown[plan.index] = len(unknown - done)


def work(plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
    """Body of a worker process."""
    history = HistoryWriter(directory, plan.worker, plan.role, plan.queue)
    history.add("open", 0, detail="amq/0")
    try:
        (produce if plan.role == "producer" else consume)(plan, board, history)
    finally:
        history.close()
