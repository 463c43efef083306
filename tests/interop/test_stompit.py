"""stompit, a STOMP client for Node that we did not write, with its own failover: through the death of the master."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest
from brokers import Brokers

import amq
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
SCRIPT = Path(__file__).parent / "node" / "failover.js"
COUNT = 60
EXPECTED = [str(number) for number in range(COUNT)]


def said(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What it prints, line by line. Each has to come within a deadline."""
    assert process.stdout is not None
    stdout, lines, line = process.stdout, Queue[bytes](), b"nothing"

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put(b"")

    Thread(target=read, name="what node prints", daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=DEADLINE_S)
        except Empty:
            pytest.fail(f"node says no more; the last was {line!r}")
        if not line:
            return
        yield json.loads(line)


def test_a_node_program_misses_nothing(brokers: Brokers, node_modules: Path | None) -> None:
    """Sends with receipts, single acknowledgements, transactions, a durable subscription; kill -9 in the middle."""
    if node_modules is None:
        pytest.skip("node or npm is missing: install them to test with a Node client, here and in test_matrix.py")
    group = [brokers.master("a"), brokers.slave("b")]
    words = [shutil.which("node") or "node", str(SCRIPT), "js", str(COUNT), *(str(broker.port) for broker in group)]
    done: dict[str, list[int]] = {"sent": [], "published": [], "transacted": []}
    result: dict[str, Any] = {}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ | {"NODE_PATH": str(node_modules)}) as process:
        try:
            for line in said(process):
                if "queue" in line:
                    result = line
                    continue
                ((what, number),) = line.items()
                done[what].append(number)
                if (what, number) == ("sent", COUNT // 3):
                    group[0].kill()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
    assert list(done.values()) == [list(range(COUNT))] * 3
    for consumer in (result["queue"], result["durable"]):
        assert list(dict.fromkeys(consumer["came"])) == EXPECTED, "in order, what came twice aside"
    with amq.connect(f"stomp://127.0.0.1:{group[1].port}") as connection, connection.session() as session:
        left = {message.text for message in session.browser("/queue/js")}
        transacted = [message.text for message in session.browser("/queue/js.out")]
    assert left.isdisjoint(result["queue"]["acknowledged"]), "what was confirmed is not undone"
    assert transacted == [body for number in EXPECTED for body in (number, f"{number}!")], "each once, whole"
