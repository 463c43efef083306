"""Programs that end, or drop their connection, without closing it: what they sent gets its time, and they learn of
what is lost. Real programs on both faces, and real brokers.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import Broker, Brokers
from fake_broker import Conversation
from world import World

import amq
from amq.client.core import ProducerCore
from amq.client.states import State
from amq.core.errors import CommandError
from amq.protocols.stomp.frame import Frame, encode
from tests.patience import DEADLINE_S
from tests.sampling import only

Q = "/queue/q"
ROOT = Path(__file__).resolve().parent.parent.parent

SYNC = """
import amq, os, sys, gc
def send():
    connection = amq.connect({url!r}, send_window_messages=10_000, exit_timeout={timeout})
    producer = connection.session().producer({queue!r})
    {before}
    for number in range({count}):
        producer.send(str(number), wait=False)
    return {kept}
kept = send()
{after}
"""
ASYNCIO = """
import asyncio, os, sys, gc
from amq import aio
async def send():
    connection = await aio.connect({url!r}, send_window_messages=10_000, exit_timeout={timeout})
    producer = connection.session().producer({queue!r})
    {before}
    for number in range({count}):
        await producer.send(str(number), wait=False)
    return {kept}
"""
ASYNCIO_RUN = ASYNCIO + "kept = asyncio.run(send())\n{after}"
ASYNCIO_LOOP = ASYNCIO + "loop = asyncio.new_event_loop()\nkept = loop.run_until_complete(send())\n{after}"
ASYNCIO_THREAD = (
    ASYNCIO
    + """
import threading
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
kept = asyncio.run_coroutine_threadsafe(send(), loop).result()
{after}
"""
)
PROGRAMS = {"sync": SYNC, "asyncio.run": ASYNCIO_RUN, "a loop": ASYNCIO_LOOP, "a loop in a thread": ASYNCIO_THREAD}
programs = pytest.mark.parametrize(
    "program", [pytest.param(name, marks=pytest.mark.deep) if "loop" in name else name for name in PROGRAMS]
)
dropped = pytest.mark.parametrize("kept", ["connection", pytest.param("None", marks=pytest.mark.deep)])


def start(program: str, url: str, **words: object) -> subprocess.Popen[str]:
    given = {"url": url, "queue": Q, "timeout": 20, "count": 5000, "before": "pass", "after": "", "kept": "connection"}
    code = PROGRAMS[program].format(**given | words)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, url: str, **words: object) -> str:
    """Its errors."""
    process = start(program, url, **words)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == words.get("code", 0), errors
    return errors


def url(*brokers: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})"


def bodies(broker: Broker, count: int) -> list[str]:
    """All that is in the queue: `count` messages."""
    with amq.connect(url(broker)) as connection, connection.session() as session:
        found = [message.text for message in session.browser(Q, prefetch=1000)]
    assert len(found) == count
    return found


@programs
@dropped
def test_all_arrives_though_nobody_closed(brokers: Brokers, program: str, kept: str) -> None:
    master = brokers.master("a")
    assert run(program, url(master), kept=kept) == ""
    assert bodies(master, 5000) == [str(number) for number in range(5000)]


@programs
def test_also_where_the_program_fails(brokers: Brokers, program: str) -> None:
    master = brokers.master("a")
    errors = run(program, url(master), after="raise SystemExit(3)", code=3)
    assert errors == ""
    assert len(bodies(master, 5000)) == 5000


@programs
@dropped
@pytest.mark.parametrize("end", only([signal.SIGSTOP, signal.SIGKILL], signal.SIGKILL))
def test_where_no_broker_answers_the_number_is_told(
    brokers: Brokers, program: str, kept: str, end: signal.Signals
) -> None:
    master = brokers.master("a")
    before = "print('connected', flush=True); sys.stdin.readline()"
    process = start(program, url(master) + "?nested.heartBeat=0", timeout=0.3, count=70, kept=kept, before=before)
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    master.signal(end)
    _, errors = process.communicate("go\n", timeout=DEADLINE_S)
    assert process.returncode == 0
    assert f"{url(master)}: the program left the connection with 70 unconfirmed messages: call flush()" in errors
    assert errors.count("\n") == 1


@programs
@dropped
def test_what_the_broker_rejected_is_told_too(brokers: Brokers, program: str, kept: str) -> None:
    master = brokers.master("a", maxFrameSize="1KiB")
    before = "for _ in range(2): {await_}producer.send('x' * 2000, wait=False)"
    before = before.format(await_="" if program == "sync" else "await ")
    errors = run(program, url(master), count=3, kept=kept, before=before)
    assert "left the connection with 2 rejected messages" in errors
    assert errors.count("\n") == 1
    assert bodies(master, 3) == ["0", "1", "2"]


@pytest.mark.parametrize("program", ["sync", "asyncio.run"])
def test_a_program_that_closed_or_flushed_is_told_nothing(brokers: Brokers, program: str) -> None:
    master = brokers.master("a", maxFrameSize="1KiB")
    word = "" if program == "sync" else "await "
    for end in ("connection.close()", "producer.flush()"):
        before = f"{word}producer.send('x', wait=False); {word}{end}; return"
        assert run(program, url(master), before=before) == ""


def test_a_forked_child_leaves_the_messages_of_its_parent_alone(brokers: Brokers) -> None:
    master = brokers.master("a")
    errors = run("sync", url(master), after="if not os.fork(): sys.exit(0)\nos.wait()")
    assert "unconfirmed" not in errors
    assert len(bodies(master, 5000)) == 5000


def test_an_exit_timeout_is_a_number_of_seconds() -> None:
    with pytest.raises(CommandError, match="exit_timeout=-1"):
        amq.connect("stomp://127.0.0.1:1", exit_timeout=-1)


def test_the_machine_ends_when_all_is_confirmed_or_its_time_is_over() -> None:
    def ignore(_: Conversation, frame: Frame) -> bytes | None:
        return b"\n" if frame.command == "SEND" and frame.body == b"late" else None

    def refuse(_: Conversation, frame: Frame) -> bytes | None:
        error = encode("ERROR", [("message", "no"), ("receipt-id", frame.headers.get("receipt", ""))])
        return error if frame.body == b"bad" else None

    for body, script, seconds, says in (
        ("good", None, 0, None),
        ("late", ignore, 5, "1 unconfirmed message:"),
        ("bad", refuse, 0, "1 rejected"),
    ):
        world = World("failover:(stomp://a:1)?nested.heartBeat=0", script=script).connect()
        world.send(ProducerCore(world.session(), Q), body)
        world.machine.logs.clear()
        world.machine.abandon(world.now)
        world.advance(0.1)
        world.machine.tick(world.now)  # as drivers do behind each news
        world.settle()
        assert (world.state is State.CLOSED) is (seconds == 0)
        world.machine.abandon(world.now)
        world.advance(seconds)
        assert world.state is State.CLOSED
        assert [text for _, text in world.machine.logs if says in text] if says else not world.machine.logs
