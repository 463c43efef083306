"""The pages in a real browser, Debian's chromium, beside real brokers: a takeover, and a hostile queue, by keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from brokers import Brokers

import amq as client
from amq.console.lists import LISTS
from tests.console.browsers import PATIENCE_MS, browser_page, console, log_in, send, shot
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
HOSTILE = "<img src=x onerror=alert(1)"  # STOMP takes no ">" in a name


def test_a_takeover_is_seen_in_the_browser(brokers: Brokers) -> None:
    first, second = brokers.master("a"), brokers.slave("b")
    send(first, "orders", "hello", 5)
    with console(second) as url, browser_page() as page:
        log_in(page, url)
        row = page.locator("tr", has=page.get_by_role("rowheader", name="b", exact=True))
        row.get_by_text("slave").wait_for()
        first.kill()
        row.get_by_text("master").wait_for()
        page.get_by_role("rowheader", name="2", exact=True).wait_for()
        send(second, "orders", "again", 100)
        page.locator("#rates", has_text="per second").wait_for()
        page.locator("#plot canvas").wait_for()
        shot(page, "overview")


def test_a_hostile_queue_is_text_and_is_purged_by_keyboard(brokers: Brokers) -> None:
    broker = brokers.master("a")
    send(broker, HOSTILE, HOSTILE, 3)
    with console(broker) as url, browser_page() as page:
        log_in(page, url)
        page.get_by_role("navigation").get_by_role("link", name="Queues").focus()
        page.keyboard.press("Enter")
        link = page.get_by_role("link", name=HOSTILE)
        link.wait_for()
        page.set_viewport_size({"width": 390, "height": 844})
        shot(page, "queues-phone")
        link.focus()
        page.wait_for_timeout(2500)  # a refresh swaps the table
        assert page.evaluate("document.activeElement.textContent") == HOSTILE, "focus survives"
        page.keyboard.press("Enter")
        page.get_by_text("It has no consumer.").wait_for()
        shot(page, "queue")
        page.get_by_role("cell", name=HOSTILE).first.wait_for()
        page.get_by_role("button", name="Purge").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Purge 3 messages?").wait_for()
        page.keyboard.press("Enter")
        page.get_by_text("purge: 3 messages").wait_for()


def go(page: Any, name: str, role: str = "link") -> None:
    """As somebody without a mouse does."""
    page.get_by_role(role, name=name).first.focus()
    page.keyboard.press("Enter")


def test_messages_are_found_moved_and_retried_by_keyboard(brokers: Brokers) -> None:
    broker = brokers.master("a")
    send(broker, "orders", "red", 2)
    send(broker, "orders", "blue", 3)
    with client.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        consumer = session.consumer("/queue/orders", selector="mark = 'blue'")
        for _ in range(2):
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            message.nack(wait=True)
    with console(broker) as url, browser_page() as page:
        log_in(page, url)
        go(page, "Dead letters")
        go(page, "DLQ.orders")
        page.get_by_text("2").first.wait_for()
        go(page, "Retry…", "button")
        page.get_by_text("Retry 2 messages?").wait_for()
        page.keyboard.press("Enter")
        page.get_by_text("retry: 2 messages").wait_for()
        go(page, "Queues")
        go(page, "orders")
        page.get_by_label("Selector").focus()
        page.keyboard.type("mark = 'red'")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Purge what is selected…").wait_for()
        assert page.get_by_role("region", name="Messages").locator("tbody tr").count() == 2
        page.get_by_label("To queue").focus()
        page.keyboard.type("archive")
        go(page, "Move…", "button")
        page.get_by_text("Move 2 messages to archive?").wait_for()
        page.keyboard.press("Enter")
        page.get_by_text("move: 2 messages").wait_for()
        go(page, "Queues")
        go(page, "archive")
        go(page, "ID:")
        page.get_by_role("heading", name="Body").wait_for()
        page.get_by_text("red", exact=True).first.wait_for()
        go(page, "Delete…", "button")
        page.get_by_text("Purge 1 message?").wait_for()
        page.keyboard.press("Enter")
        page.get_by_text("purge: 1 message").wait_for()


def test_a_broker_that_hangs_is_told_and_seen_again(brokers: Brokers) -> None:
    broker = brokers.master("a")
    with console(broker) as url, browser_page() as page:
        log_in(page, url)
        page.locator(".figures li", has_text="epoch").wait_for()
        broker.freeze()
        page.locator("#live .bad", has_text="hangs").wait_for()
        page.get_by_text("no answer from the broker").wait_for()
        broker.thaw()
        page.locator(".figures li", has_text="epoch").wait_for()


def test_no_page_is_wider_than_a_phone_and_hostile_names_are_text_everywhere(brokers: Brokers) -> None:
    broker = brokers.master("a")
    send(broker, HOSTILE, HOSTILE, 2)
    with (
        console(broker) as url,
        browser_page(viewport={"width": 360, "height": 740}) as page,
        client.connect(f"stomp://127.0.0.1:{broker.port}", client_id=HOSTILE) as connection,
        connection.session() as session,
    ):
        session.consumer("/topic/prices", subscription=HOSTILE)
        consumer = session.consumer(f"/queue/{HOSTILE}", selector=f"mark = '{HOSTILE[:20]}'")
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        message.nack(wait=True)
        log_in(page, url)
        paths = ["/", *(listed.path for listed in LISTS)]
        for path in paths:
            page.goto(url + path)
            page.locator("#live").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            assert page.locator("img").count() == 0, path
        page.get_by_role("link", name="Consumers").click()
        page.get_by_role("cell", name=HOSTILE).first.wait_for()


def test_the_plot_begins_with_the_history_of_the_broker(brokers: Brokers) -> None:
    """What was before a page was opened, in three time ranges; figures that nobody refreshes say so."""
    broker = brokers.master("a")
    with console(broker) as url, browser_page(color_scheme="dark") as page:
        log_in(page, url)
        deadline = page.evaluate("Date.now()") + PATIENCE_MS
        while True:
            send(broker, "orders", "hello", 20)
            page.goto(f"{url}/queue/orders")
            page.locator("#plot canvas").wait_for()
            page.wait_for_timeout(500)
            if page.evaluate("Number(document.getElementById('plot').dataset.points || 0)") >= 2:
                break
            assert page.evaluate("Date.now()") < deadline, "no history"
        shot(page, "queue-dark")
        for name in ("1 h", "1 d", "10 min"):
            page.get_by_role("button", name=name).click()
            assert page.get_by_role("button", name=name).get_attribute("aria-pressed") == "true"
        page.route("**/*part=*", lambda route: route.abort())
        page.locator("#stale").wait_for(state="visible")
        assert "s old" in page.locator("#stale").text_content()
        assert "stale" in page.locator("#live").get_attribute("class")
        page.unroute("**/*part=*")
        page.locator("#stale").wait_for(state="hidden")


def test_the_console_of_a_killed_master_leads_to_the_next_one_and_a_key_to_the_search(brokers: Brokers) -> None:
    first, second = brokers.master("a"), brokers.slave("b")
    with console(first) as url, console(second) as other, browser_page() as page:
        log_in(page, url)
        page.goto(f"{url}/queues")
        first.kill()
        second.wait_serving()
        link = page.locator("#to-master")
        link.wait_for()
        assert link.get_attribute("href") == f"{other}/queues"
        link.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{other}/**")
        log_in(page, other)
        send(second, "orders.eu", "hello")
        page.goto(f"{other}/queues")
        page.keyboard.press("/")
        page.keyboard.type("DERS")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Queues: 1").wait_for()
        page.get_by_role("link", name="orders.eu").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="orders.eu").wait_for()
