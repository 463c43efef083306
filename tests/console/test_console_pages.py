"""The pages of a console, without a browser: login, sessions, forms, and that hostile text stays text."""

from __future__ import annotations

import asyncio
import hashlib
import html
import re
import shlex
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import httpx
import pytest

from amq.console.lists import LISTS
from amq.console.sessions import IDLE_S, SESSIONS_MAX, LoginSessions
from amq.management.client import part
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.console.consoles import by_password, client_of, with_console
from tests.fakes import FakeClock
from tests.management.managed import Managed

STATIC = Path(__file__).resolve().parent.parent.parent / "amq" / "console" / "static"
# From npm: htmx.org 2.0.11, uplot 1.6.32.
SHIPPED = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
HOSTILE = "<script>alert(1)</script>\"' &"


async def log_in(client: httpx.AsyncClient, user: str = "root", password: str = "r", **more: Any) -> httpx.Response:
    return await client.post("/login", data={"login": user, "passcode": password}, **more)


async def form(client: httpx.AsyncClient, page: str, **fields: str) -> httpx.Response:
    """Post what a form of `page` posts there."""
    token = re.search(r'name="csrf" value="([^"]+)"', (await client.get(page)).text)
    assert token is not None
    return await client.post(page, data={"csrf": token[1], **fields})


def test_the_files_of_others_are_those_that_we_chose() -> None:
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in SHIPPED} == SHIPPED


async def test_login_and_logout(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (_, client):
        answer = await client.get("/queues")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?to=%2Fqueues")
        assert (await client.get("/login")).status_code == 200
        assert (await log_in(client, password="wrong")).status_code == 401
        assert (await log_in(client, headers={"origin": "http://evil.example"})).status_code == 403
        answer = await log_in(client)
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        answer = await client.get("/")
        assert answer.status_code == 200
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert (await client.get("/static/htmx.min.js")).status_code == 200
        token = re.search(r'name="csrf" value="([^"]+)"', answer.text)
        assert token is not None
        assert (await client.post("/logout", data={"csrf": "wrong"})).status_code == 403
        assert (await client.post("/logout", data={"csrf": token[1]})).status_code == 303
        assert (await client.get("/")).status_code == 303
        for to in ("//evil.example", "http://evil.example", "/\\evil.example"):
            answer = await client.post("/login", data={"login": "root", "passcode": "r", "to": to})
            assert answer.headers["location"] == "/"


async def test_consoles_on_two_ports_of_a_host_keep_two_sessions(tmp_path: Path) -> None:
    """A browser has one jar of cookies for all ports of a host; a stranger's Host header chooses no name in it."""
    async with with_console(tmp_path) as (made, client):
        store, jar = made.config.store, CookieJar()
        one, other = (client_of(store, url=f"http://console:{port}") for port in (8161, 8162))
        async with one, other:
            one.cookies = other.cookies = jar  # type: ignore[assignment]
            assert (await log_in(one)).status_code == 303
            assert (await log_in(other, headers={"host": "console:8161"})).status_code == 303
            assert len(jar) == 2
            assert [(await each.get("/")).status_code for each in (one, other)] == [200, 200]
            token = re.search(r'name="csrf" value="([^"]+)"', (await other.get("/")).text)
            assert token is not None
            assert (await other.post("/logout", data={"csrf": token[1]})).status_code == 303
            assert [(await each.get("/")).status_code for each in (one, other)] == [200, 303]
        assert (await client.get("/", headers={"host": "console:no-number"})).status_code == 421


async def test_every_list_has_a_page(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("orders", 3)
        await log_in(client)
        for listed in LISTS:
            page = await client.get(listed.path)
            assert page.status_code == 200
            assert "told bad" not in page.text, listed.path
            assert f"<h1>{listed.title}</h1>" in page.text
            part = (await client.get(f"{listed.path}?part=1")).text
            assert part.lstrip().startswith('<div id="live"')
        await made.ask("POST", "/topics/prices%2Feu/messages", {"body": "1"})
        assert 'href="/topic/prices%2Feu"' in (await client.get("/topics")).text
        page = (await client.get("/topic/prices%2Feu")).text
        assert "<li>enqueued <b>1</b></li>" in page
        assert 'data-topic="prices/eu"' in page
        assert (await client.get("/figures.json?topic=prices%2Feu")).json()["enqueued"] == 1
        assert "there is no topic" in (await client.get("/topic/nobody")).text
        page = (await client.get("/queues?sort=-messages")).text
        assert 'aria-sort="descending"' in page
        assert ">orders<" in page
        assert "1" in (await client.get("/figures.json")).text
        await made.broker_stops()
        assert "told bad" in (await client.get("/")).text, "the page says that nobody answers"


async def test_hostile_names_and_bodies_are_text(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        path = f"/queues/{part(HOSTILE)}/messages"
        await made.ask("POST", path, {"body": HOSTILE, "properties": {HOSTILE: HOSTILE}})
        await made.ask("POST", path, {"body_base64": "AP8="})
        await log_in(client)
        here = f"/queue/{part(HOSTILE)}"
        rows = (await made.ask("GET", path))["items"]
        pages = ["/queues", here, f"{here}?selector={part(HOSTILE)}", *(f"{here}/{part(row['id'])}" for row in rows)]
        for page in pages:
            answer = await client.get(page)
            assert "<script>alert" not in answer.text, page
            assert answer.status_code in (200, 400)
        assert "&lt;script&gt;alert(1)" in (await client.get(pages[3])).text
        assert "00000000  00 ff" in (await client.get(pages[4])).text


async def test_changes_are_previewed_and_then_done(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("q", 5)
        await log_in(client)
        answer = await client.post("/queue/q", data={"do": "purge", "sure": "yes"})
        assert answer.status_code == 403, "without the token"
        answer = await form(client, "/queue/q", do="purge")
        assert "Purge 5 messages?" in answer.text
        assert (await made.ask("GET", "/queues/q"))["messages"] == 5
        answer = await form(client, "/queue/q", do="move", to="r", selector="n = '1'", sure="yes")
        assert answer.status_code == 303
        assert "move: 1 message<" in (await client.get("/queue/q")).text
        assert (await made.ask("GET", "/queues/r"))["messages"] == 1
        await form(client, "/queue/q", do="pause")
        assert "It is paused" in (await client.get("/queue/q")).text
        await form(client, "/queue/q", do="resume")
        assert "It has no consumer." in (await client.get("/queue/q")).text
        await form(client, "/queue/q", do="send", body="hello", properties="a=b\nc=d=e")
        row = (await made.ask("GET", "/queues/q/messages"))["items"][-1]
        assert (row["body"], row["properties"]) == ("hello", {"a": "b", "c": "d=e"})
        await form(client, "/queue/q", do="purge", ids=row["id"], sure="yes")
        assert (await made.ask("GET", "/queues/q"))["messages"] == 4
        assert (await form(client, "/queue/q", do="burn")).status_code == 403
        await form(client, "/queue/q", do="delete", sure="yes")
        while (await client.get("/queue/q")).status_code != 400:  # idle queues are forgotten once a second
            await asyncio.sleep(0.05)


async def test_rows_are_ended_after_a_question(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        consumer = await made.client()
        await consumer.send(
            "SUBSCRIBE",
            ("id", "d"),
            ("destination", "/topic/t"),
            ("activemq.subscriptionName", HOSTILE),
            ("receipt", "s"),
        )
        assert (await consumer.receive()).command == "RECEIPT"
        await log_in(client)
        (durable,) = (await made.ask("GET", "/subscriptions"))["items"]
        fields = {"do": "delete", "name": durable["name"], "client_id": durable["client_id"] or ""}
        answer = await form(client, "/subscriptions", **fields, sure="yes")
        assert (answer.status_code, "Not done" in answer.text) == (400, True), "it is in use"
        (row,) = (await made.ask("GET", "/connections"))["items"]
        assert f'value="{row["name"]}"' in (await client.get("/connections?part=1")).text
        close = {"do": "close", "name": row["name"]}
        assert (await client.post("/connections", data={**close, "sure": "yes"})).status_code == 403, "no token"
        question = (await form(client, "/connections", **close)).text.replace("<wbr>", "")
        assert f"Close connection {row['name']}?" in question
        assert len((await made.ask("GET", "/connections"))["items"]) == 1
        assert (await form(client, "/connections", **close, sure="yes")).status_code == 303
        assert (await consumer.receive()).command == "ERROR"
        assert f"close: connection {row['name']}" in (await client.get("/connections")).text
        answer = await form(client, "/subscriptions", **fields)
        assert "<script>" not in answer.text
        assert "&lt;script&gt;" in answer.text
        assert len((await made.ask("GET", "/subscriptions"))["items"]) == 1
        assert (await form(client, "/subscriptions", **fields, sure="yes")).status_code == 303
        assert (await made.ask("GET", "/subscriptions"))["items"] == []
        part_of_it = {"do": "delete", "name": "n"}
        for page, wrong in (("/queues", close), ("/connections", fields), ("/subscriptions", part_of_it)):
            token = re.search(r'name="csrf" value="([^"]+)"', (await client.get("/")).text)
            assert token is not None
            answer = await client.post(page, data={"csrf": token[1], **wrong, "sure": "yes"})
            assert "there is no such button" in answer.text


@pytest.mark.parametrize(
    ("peers", "told"),
    [
        ("", "The master is <b>a</b> on host "),
        ("https://{host}.example:8161/{name}/", 'example:8161/a/queues">a</a>'),
    ],
)
async def test_a_slave_leads_to_the_master(tmp_path: Path, peers: str, told: str) -> None:
    async with with_console(tmp_path) as (made, client):
        await log_in(client)
        assert "The master is" not in (await client.get("/queues")).text
        slave = Managed(tmp_path, by_password, name="b", management_socket=str(tmp_path / "b.sock"))
        await slave.start(as_slave=True)
        async with client_of(made.config.store, "b", peers=peers) as other:
            await log_in(other)
            assert told in (await other.get("/queues")).text
            for page in ("/", "/queue/a%2Fb"):
                assert "The master is" in (await other.get(page)).text
            assert not peers or '/a/queue/a%2Fb"' in (await other.get("/queue/a%2Fb")).text
        await slave.stop()


@pytest.mark.parametrize("count", [SESSIONS_MAX * 2])
def test_sessions_are_bounded_and_end(count: int) -> None:
    clock = FakeClock()
    sessions = LoginSessions(clock)
    first = sessions.open(User("a"))
    cookies = [sessions.open(User("b")) for _ in range(count)]
    assert len(sessions) == SESSIONS_MAX
    assert sessions.get(first) is None
    assert len(set(cookies)) == count
    kept = sessions.get(cookies[-1])
    assert kept is not None
    assert not kept.is_own("")
    clock.advance(IDLE_S + 1)
    assert sessions.get(cookies[-1]) is None


def test_a_session_ends_with_its_login() -> None:
    clock = FakeClock()
    sessions = LoginSessions(clock)
    cookie = sessions.open(User("a"), 60.0)
    clock.advance(59)
    assert sessions.get(cookie) is not None
    clock.advance(2)
    assert sessions.get(cookie) is None


async def test_checked_messages_are_changed_together(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("q", 5)
        await log_in(client)
        page = (await client.get("/queue/q")).text
        ids = re.findall(r'name="ids" value="([^"]+)" form="change"', page)
        assert len(ids) == 5
        token = re.search(r'name="csrf" value="([^"]+)"', page)
        assert token is not None
        given = [("csrf", token[1]), ("do", "move"), ("to", "r"), ("ids", ids[1]), ("ids", ids[3])]
        body = "&".join(f"{key}={part(value)}" for key, value in given)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = (await client.post("/queue/q", content=body, headers=headers)).text
        assert "Move 2 messages to r?" in answer
        both = re.search(r'name="ids" value="([^"]+)"', answer)
        assert both is not None
        await form(client, "/queue/q", do="move", to="r", ids=both[1], sure="yes")
        assert await made.bodies("r") == ["q 1", "q 3"]
        assert await made.bodies("q") == ["q 0", "q 2", "q 4"]


async def test_a_message_goes_to_any_queue_or_topic(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await log_in(client)
        answer = await form(client, "/send", kind="queue", to="new", body="hello", properties="a=b", priority="7")
        assert answer.headers["location"] == "/queue/new"
        (row,) = (await made.ask("GET", "/queues/new/messages"))["items"]
        assert (row["body"], row["properties"], row["priority"], row["persistent"]) == ("hello", {"a": "b"}, 7, False)
        assert (await form(client, "/send", kind="topic", to="prices", body="1")).status_code == 303
        assert "1 message sent to topic prices" in (await client.get("/send")).text
        for name, properties in (("", ""), ("q", "=of no name")):
            answer = await form(client, "/send", kind="queue", to=name, body="kept", properties=properties)
            assert (answer.status_code, "kept" in answer.text) == (400, True), name


async def test_a_group_of_dead_letters_leads_to_its_messages(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        for number, cause in enumerate(("it's 100% broken", "it's 100 times broken")):
            properties = {
                "original-destination": "/queue/orders",
                "dead-letter-reason": "refused",
                "dlqDeliveryFailureCause": f"{cause}\nat line {number}",
            }
            await made.ask("POST", "/queues/DLQ.orders/messages", {"body": cause, "properties": properties})
        await log_in(client)
        page = (await client.get("/dead-letters")).text
        links = [html.unescape(link) for link in re.findall(r'href="(/queue/DLQ.orders\?selector=[^"]+)"', page)]
        assert len(links) == 2
        assert "<caption>Groups: 2</caption>" in page
        for link in links:
            found = (await client.get(link)).text
            assert found.count('form="change"') == 1, link


async def test_pages_are_linked_and_commands_can_be_copied(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("it's", 2)
        await log_in(client)
        assert 'the page <a href="/queues">Queues</a> has the fullest first' in (await client.get("/")).text
        page = html.unescape((await client.get("/queue/it%27s?selector=n+%3D+%271%27")).text)
        (command,) = re.findall("amq queue browse .*", page)
        store = made.config.store
        assert shlex.split(command) == ["amq", "queue", "browse", "it's", "--selector", "n = '1'", "--store", store]
        assert "curl -u root http" in page or "curl -u root 'http" in page


async def test_a_question_says_whose_connection_it_closes(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.client()
        await log_in(client)
        page = (await client.get("/connections")).text
        fields = dict(re.findall(r'type="hidden" name="([a-z_]+)" value="([^"]*)"', page.split("<tbody")[1]))
        answer = await form(client, "/connections", do="close", **{k: v for k, v in fields.items() if k != "csrf"})
        about = answer.text.replace("<wbr>", "")
        assert f"user {fields['user']}" in about
        assert f"address {fields['address']}" in about


async def test_a_list_that_is_refused_says_nothing_of_its_rows(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        permissions = tmp_path / "permissions.toml"
        permissions.write_text("[broker]\nmanage = []\n")
        made.service.permit(Permissions.read(str(permissions)))
        await log_in(client)
        page = (await client.get("/consumers")).text
        assert "NOT_PERMITTED" in page or "may not" in page
        assert ">none<" not in page
        assert "Consumers: 0" not in page


async def test_a_queue_leads_to_its_consumers_and_says_where_its_messages_go_on(tmp_path: Path) -> None:
    async with with_console(tmp_path, divert="audit") as (made, client):
        consumer = await made.client()
        for number, name in enumerate(("orders", "orders.eu")):
            await consumer.send("SUBSCRIBE", ("id", str(number)), ("destination", f"/queue/{name}"), ("receipt", name))
            assert (await consumer.receive()).command == "RECEIPT"
        await log_in(client)
        page = (await client.get("/queue/orders")).text
        assert "<code>audit</code>" in page
        link = re.search(r'href="(/consumers[?]destination=orders)"', page)
        assert link is not None
        rows = (await client.get(link[1])).text.split("<tbody")[1]
        assert (rows.count('href="/queue/orders"'), rows.count("orders.eu")) == (1, 0)
        words = [("id", "7"), ("destination", "/topic/t"), ("receipt", "t"), ("activemq.subscriptionName", "s")]
        durable = await made.client(("client-id", "c"))
        await durable.send("SUBSCRIBE", *words)
        assert (await durable.receive()).command == "RECEIPT"
        assert 'href="/topic/t"' in (await client.get("/subscriptions")).text
        link = re.search(r'href="(/consumers[?]destination=[^"]+)"', (await client.get("/topic/t")).text)
        assert link is not None
        assert (await client.get(link[1])).text.count('href="/topic/t"') == 1
