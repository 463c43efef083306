"""Where consoles are: each says it to its broker, which passes it on to the consoles of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amq.console.announcing import announce, own_url
from amq.console.link import Link
from amq.core.errors import AccessError, CommandError
from amq.doors.clock import SystemClock
from amq.management.consoles import URL_CHARS_MAX, VALID_S, Announced, is_loopback, web_url
from amq.management.resources import Caller
from amq.security.login import User
from amq.store.open import open_store
from amq.store.presence import read_presence
from tests.console.consoles import by_password, client_of, with_console
from tests.console.test_console_pages import log_in
from tests.fakes import FakeClock
from tests.management.managed import Managed

FAR, NEAR = "https://a.example:8161", "http://127.0.0.1:8161"


@pytest.mark.parametrize(
    "wrong",
    [
        "javascript:alert(1)",
        "ftp://a.example/",
        "https://",
        "https://user:word@a.example/",
        "https://a.example:0/",
        "https://a.example:99999/",
        "https://a.example/?x=1",
        "https://a.example/#x",
        'https://a.example/">',
        "https://{host}/",
        "https://a.example/\n",
        "https://ä.example/",
        "https://" + "a" * URL_CHARS_MAX,
        "https://[::1",
        7,
        None,
    ],
)
def test_only_a_plain_url_of_a_web_server_is_linked(wrong: Any) -> None:
    assert web_url(wrong) == ""


def test_where_a_console_is() -> None:
    assert web_url(FAR + "/") == FAR
    assert web_url(own_url("0.0.0.0", 8161, True)).startswith("https://")
    assert not is_loopback(own_url("::", 8161, False))
    assert own_url("::1", 8161, False) == "http://[::1]:8161"
    assert is_loopback("http://[::1]:8161")
    assert own_url("10.0.0.1", 80, False) == "http://10.0.0.1:80"


def test_it_counts_as_long_as_it_is_said_again_and_the_first_one_stays() -> None:
    clock = FakeClock()
    announced = Announced(clock)
    assert announced.url() == ""
    announced.say(FAR)
    clock.advance(VALID_S - 1)
    announced.say(NEAR)  # another console of this broker
    announced.say(FAR)
    clock.advance(VALID_S - 1)
    assert announced.url() == FAR
    clock.advance(1)
    assert announced.url() == ""
    announced.say(NEAR)
    assert announced.url() == NEAR


async def told_in_the_store(made: Managed, url: str) -> None:
    """Until `brokers/a.json` says so."""
    store = made.config.store
    while next(each.console for each in read_presence(open_store(store).board) if each.name == "a") != url:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("said", [FAR, NEAR])
async def test_a_slave_links_to_the_console_of_the_master(tmp_path: Path, said: str) -> None:
    """A console at a loopback address is linked for browsers on its own host only."""
    async with with_console(tmp_path) as (made, _):
        slave = Managed(tmp_path, by_password, name="b", management_socket=str(tmp_path / "b.sock"))
        await slave.start(as_slave=True)
        async with client_of(made.config.store, "b") as other:
            await log_in(other)
            assert "it has not announced where it serves" in (await other.get("/queues")).text
            task = asyncio.create_task(announce(Link(made.config.store, "a", SystemClock()), said))
            await told_in_the_store(made, said)
            task.cancel()
            while f'href="{FAR}/queues"' not in (page := (await other.get("/queues")).text) and said == FAR:
                await asyncio.sleep(0.05)  # the store is read once a second
            while said == NEAR and "listens on that host alone" not in page:
                await asyncio.sleep(0.05)
                page = (await other.get("/queues")).text
            if said == NEAR:
                assert 'href="http://127' not in page, "this browser asked for http://console"
                there = {"host": "localhost:8161"}
                assert f'href="{NEAR}/queues"' in (await other.get("/queues", headers=there)).text
            assert (said == FAR) == (f'href="{FAR}/"' in (await other.get("/")).text), "in the table of brokers"
        await slave.stop()


async def test_only_the_console_itself_says_where_it_is(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, _):
        with pytest.raises(AccessError):
            await made.ask("POST", "/console", {"url": FAR}, Caller(User("root")))
        with pytest.raises(CommandError):
            await made.ask("POST", "/console", {"url": "javascript:alert(1)"})
        assert (await made.ask("POST", "/console", {"url": FAR + "/"}))["again_s"] > 0
        await told_in_the_store(made, FAR)
