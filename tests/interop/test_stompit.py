"""stompit, a STOMP client for Node that we did not write, with its own failover: through the death of the master."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from brokers import DEADLINE_S, Brokers

import amq

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "node" / "failover.js"
COUNT = 60


def test_a_node_program_misses_nothing(brokers: Brokers, node_modules: Path | None) -> None:
    """Sends with receipts, single acknowledgements, transactions, a durable subscription; kill -9 in the middle."""
    if node_modules is None:
        pytest.skip("node or npm is missing: install them to test with a Node client, here and in test_matrix.py")
    group = [brokers.master("a"), brokers.slave("b")]
    words = [shutil.which("node") or "node", str(SCRIPT), "js", str(COUNT), *(str(broker.port) for broker in group)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ | {"NODE_PATH": str(node_modules)})
    try:
        assert process.stdout is not None
        said: list[dict[str, Any]] = []
        for line in process.stdout:
            said.append(json.loads(line))
            if len(said) == COUNT // 3:
                group[0].kill()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    *sent, result = said
    assert [line["sent"] for line in sent] == list(range(COUNT))
    expected = [str(number) for number in range(COUNT)]
    for came in (result["queue"], result["durable"]):
        assert set(came) == set(expected)
        assert list(dict.fromkeys(came)) == expected, "in order, what came twice aside"
    with amq.connect(f"stomp://127.0.0.1:{group[1].port}") as connection, connection.session() as session:
        assert [message.text for message in session.browser("/queue/js")] == []
        transacted = [message.text for message in session.browser("/queue/js.out")]
    assert transacted == [body for number in expected for body in (number, f"{number}!")], "each once, whole"
