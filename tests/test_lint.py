"""Each rule of `make lint` that is ours finds what it forbids, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose
from tests.lint import (
    Check,
    check_bans,
    check_patience,
    check_sizes,
    check_sleeps,
    check_suppression,
    check_text,
    circles,
    rooms_without_contract,
    shared_names,
)

CASES = [
    (check_sizes, "tests/a.py", "def f():\n" + "    x = 1\n" * 100, 1),
    (check_sizes, "amq/a.py", "def f():\n" + "    x = 1\n" * 99, 0),
    (check_text, "README.md", "x \n", 1),
    (check_text, "README.md", "x", 1),
    (check_text, "setup.cfg", "\tx\n", 1),
    (check_text, "Makefile", "\tx\n", 0),
    (check_bans, "amq/broker/a.py", "import time\nx = time.time()\n", 1),
    (check_bans, "amq/broker/a.py", "from time import time as now\nx = now()\n", 1),
    (check_bans, "amq/a.py", "from datetime import datetime\nx = datetime.now()\n", 1),
    (check_bans, "amq/a.py", "import time\nclock = time.monotonic\n", 1),
    (check_bans, "amq/a.py", "import time\ntime.sleep(1)\n", 1),
    (check_bans, "amq/store/a.py", "from os import rename\nrename('a', 'b')\n", 1),
    (check_bans, "amq/broker/a.py", "with open('x') as f:\n    pass\n", 1),
    (check_bans, "amq/journal/a.py", "import uuid\nuuid.uuid4()\n", 1),
    (check_bans, "spark/a.py", "import os\nos.environ['X']\n", 1),
    (check_bans, "amq/a.py", "import logging\nlogging.getLogger()\n", 1),
    (check_bans, "spark/pipelines/__main__.py", "import os\nos.environ['X']\n", 0),
    (check_bans, "amq/doors/clock.py", "import time\nnow = time.monotonic\n", 0),
    (check_bans, "amq/broker/a.py", "def f(clock, vfs):\n    clock.time()\n    vfs.open('x', 0)\n", 0),
    (check_suppression, "amq/a.py", "from contextlib import suppress\nwith suppress(Exception):\n    x = 1\n", 1),
    (check_suppression, "amq/a.py", "from contextlib import suppress\nwith suppress(OSError):\n    x = 1\n", 0),
    (check_sleeps, "tests/a.py", "import time\ntime.sleep(1)\n", 1),
    (check_sleeps, "tests/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n", 1),
    (check_sleeps, "tests/a.py", "import time\nwhile not f():\n    time.sleep(0.01)\n", 0),
    (check_sleeps, "tests/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n", 0),
    (check_patience, "tests/a.py", "import asyncio\nasyncio.run(asyncio.wait_for(f(), 30))\n", 1),
    (check_patience, "tests/a.py", "import subprocess\nsubprocess.run([], timeout=60)\n", 1),
    (check_patience, "tests/a.py", "def f(broker):\n    broker.receipt('1', 10)\n", 1),
    (check_patience, "tests/a.py", "def f(broker):\n    broker.receipt('1', DEADLINE_S)\n", 0),
    (check_patience, "tests/a.py", "import pytest\nwith pytest.raises(TimeoutError):\n    g(timeout_s=2.0)\n", 0),
]


@pytest.mark.parametrize(("check", "path", "source", "found"), CASES)
def test_a_check_finds_what_it_forbids(check: Check, path: str, source: str, found: int) -> None:
    assert len(list(check(path, source))) == found


def test_a_circle_is_seen() -> None:
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import B\n"
    assert list(circles({"a.a": hidden, "a.b": "from a.c import C\n", "a.c": "import a.a\n", "a.d": hidden})) == [
        ["a.a", "a.b", "a.c"]
    ]


def test_a_name_of_two_classes_is_seen() -> None:
    one, other = "class A: ...\nclass _C: ...\n", "class A: ...\nclass B:\n    class _C: ...\n"
    assert list(shared_names([one, other])) == ["A"]


def test_a_room_without_contract_is_seen() -> None:
    table = '[[tool.importlinter.contracts]]\nname = "store"\n'
    assert len(list(rooms_without_contract({"store", "cellar"}, table))) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever waits is told.\n", ["Whoever waits is told."]),
        ("One thing. What others hold\nthey finish.", ["What others hold they finish."]),
        ("- What goes is gone\n", ["What goes is gone"]),
        ("| a | Which ones, says the policy |", ["Which ones, says the policy |"]),
        ("Of what is sent nothing is lost.", ["Of what is sent nothing is lost."]),
        ("## What the log says\n\n**What is it?** A log. The broker does what it must.", []),
        ("```\nWhat is in code is code.\n```\n\n    What is indented, too.\n", []),
    ],
)
def test_relative_sentences_are_found(text: str, found: list[str]) -> None:
    assert [sentence for _, sentence in prose.relative_sentences(prose.of_document(text))] == found


def test_the_prose_of_documents_is_written_below_build_alone(tmp_path: Path) -> None:
    complaint = prose.main(tmp_path)
    assert complaint is not None
    assert "is not below build/" in complaint
    assert list(tmp_path.iterdir()) == []
