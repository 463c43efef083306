"""What clients name and send does not reach a terminal as something that it obeys."""

from __future__ import annotations

import io
import json
from urllib.parse import quote

import pytest
from brokers import Brokers

from amq.cli import logs
from amq.cli.text import VisibleText, visible, visible_json, visible_lines
from amq.cli.top import drawn
from amq.config.schema import BrokerConfig
from bench.wire import WireConnection
from tests.cli.amq_process import amq, on_terminal
from tests.patience import DEADLINE_S

ESCAPES = {
    "\x1b[2J": "\\x1b[2J",
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x9b2J": "\\x9b2J",
    "\u202e": "\\u202e",
    "\u2066": "\\u2066",
    "\u200b": "\\u200b",
    "\ufeff": "\\ufeff",
    "\u2028": "\\u2028",
    "\x7f": "\\x7f",
    "\U000e0041": "\\U000e0041",
    "\udc80": "\\udc80",
    "\r": "\\x0d",
    "\b": "\\x08",
}
HOSTILE = "a\u202eb\x9b2J\u200bc"  # what STOMP lets into names
SHOWN = "a\\u202eb\\x9b2J\\u200bc"


@pytest.mark.parametrize(("text", "shown"), ESCAPES.items())
def test_what_a_terminal_obeys_is_shown(text: str, shown: str) -> None:
    assert visible(f"x{text}y") == f"x{shown}y"
    assert visible_lines(f"x{text}\n\ty") == f"x{shown}\n\ty"
    assert json.loads(visible_json(json.dumps(text, ensure_ascii=False))) == text
    assert visible_json(json.dumps(text, ensure_ascii=False)).isprintable()


def test_other_text_stays() -> None:
    for text in ("orders.eu", "größe é", "注文", "💥", "a\u00a0b", ""):
        assert visible(text) == visible_lines(text) == visible_json(text) == text
    assert visible("a\nb\tc") == "a\\x0ab\\x09c"


def test_a_stream_shows_and_passes_bytes() -> None:
    below = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    stream = VisibleText(below)
    stream.write("a\x1bb\n")
    stream.writelines(["\u202e"])
    stream.buffer.write(b"\x1b")
    assert below.buffer.getvalue() == b"a\\x1bb\n\\u202e\x1b"  # type: ignore[attr-defined]


def test_top_draws_no_escape() -> None:
    row = {
        "name": "q\x1b[2J",
        "messages": 1,
        "enqueued_per_s": None,
        "dequeued_per_s": None,
        "consumers": 0,
        "in_flight": 0,
        "paused": False,
    }
    member = {"name": "b\x1b", "role": "slave\x1b", "host": "\u202eh", "not_ready": "why\x9b", "followed": None}
    from rich.console import Console

    text = io.StringIO()
    seen = {"group": [member], "error": "no\x1b[2J", "broker": {}, "queues": [row]}
    Console(file=text, width=200).print(drawn(seen, 200))
    assert not {"\x1b", "\x9b", "\u202e"} & set(text.getvalue())
    assert "q\\x1b[2J" in text.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_log_lines_are_shown(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    import structlog

    logs.configure(BrokerConfig(log_format=form))
    structlog.get_logger("amq.test").warning("an event", client_id="c\x1b[2J", reason="\u202e\x9b")
    line = capsys.readouterr().err
    assert not {"\x1b", "\x9b", "\u202e"} & set(line)
    if form == "json":
        found = json.loads(line)
        assert (found["client_id"], found["reason"]) == ("c\x1b[2J", "\u202e\x9b")
    else:
        assert "c\\x1b[2J" in line


@pytest.mark.deep
def test_no_command_prints_what_a_client_named(brokers: Brokers) -> None:
    broker = brokers.master("a")
    with WireConnection(broker.port, client_id=HOSTILE) as client:
        client.send(
            "SUBSCRIBE",
            {
                "id": "1",
                "destination": "/topic/t",
                "durable": "true",
                "activemq.subscriptionName": HOSTILE,
                "selector": f"x = '{HOSTILE}'",
            },
        )
        client.send("SUBSCRIBE", {"id": "2", "destination": "/queue/other", "selector": f"x = '{HOSTILE}'"})
        client.send("SEND", {"destination": f"/queue/{HOSTILE}", HOSTILE: HOSTILE, "receipt": "r"}, HOSTILE.encode())
        client.receipt("r", DEADLINE_S)
        here = ("--store", broker.store)
        commands = (
            ("queues",),
            ("consumers",),
            ("connections", "list"),
            ("subscriptions", "list"),
            ("topics",),
            ("queue", "browse", HOSTILE),
            ("queue", "peek", HOSTILE),
            ("queue", "why", HOSTILE),
            ("queue", "purge", HOSTILE + "x", "--yes"),
            ("status",),
            ("journal", "dump"),
            ("journal", "stat"),
            ("journal", "check"),
        )
        seen = 0
        for words in commands:
            done = amq(*words, *here)
            assert not {"\x1b", "\x9b", "\u202e", "\u200b"} & set(done.stdout + done.stderr), words
            seen += SHOWN in done.stdout + done.stderr
            if words[0] not in ("journal",):
                done = amq(*words, *here, "--json")
                assert done.stdout.isascii(), words
        assert seen >= 5
        assert SHOWN in on_terminal("queues", *here, columns=200)
        assert quote(HOSTILE)
