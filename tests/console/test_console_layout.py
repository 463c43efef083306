"""Every page of the console in a real browser, on a desk and on a phone, once in each theme, with a full broker: 20
queues, names of 120 characters, dead letters, and a killed master. Nothing overlaps, is cut or cannot be reached, and
axe-core has no complaint. The pictures of pages that are wrong are in build/screenshots/pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import SERVING, Broker, Brokers

import amq as client
from amq.console.lists import LISTS
from tests.console.browsers import SHOTS, axe, browser_page, complaints, console, log_in
from tests.console.test_console_pictures import fill, refuse
from tests.sampling import thorough

pytestmark = pytest.mark.deep
CHECK = (Path(__file__).parent / "layout.js").read_text()
NAME_CHARS = 120
WORDS = f"orders.europe.central.{'warehouse.returns.of.customers.and.' * 3}week.no-"
UNBROKEN = "x" * NAME_CHARS
SIZES = {"desk": {"width": 1400, "height": 900}, "phone": {"width": 400, "height": 860}}


def long_name(number: int) -> str:
    return f"{WORDS[: NAME_CHARS - 2]}{number:02d}"


@contextmanager
def busy(broker: Broker) -> Iterator[None]:
    """20 queues, and something on each page that has lists."""
    url = f"stomp://127.0.0.1:{broker.port}"
    for number in range(17):
        fill(url, long_name(number), number + 1, "order", colour="red")
    fill(url, UNBROKEN, 3, colour="red")
    fill(url, "short", 1, "x" * 300, note=UNBROKEN)
    fill(url, "short", 1, "later", AMQ_SCHEDULED_DELAY="3600000")
    refuse(url, UNBROKEN, 2)
    calm = f"{url}?heartBeat=0"  # a busy machine may keep this process from saying anything for seconds
    with client.connect(calm, client_id=long_name(99)) as connection, connection.session() as session:
        session.producer(f"/topic/{long_name(0)}").send("tick")
        session.consumer(f"/topic/{long_name(1)}", subscription=long_name(2))
        session.consumer(f"/queue/{long_name(3)}", selector=f"colour = '{UNBROKEN}'")
        yield


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), *thorough(("desk", "light"))])
def test_every_page_is_readable(brokers: Brokers, size: str, scheme: str) -> None:
    first, second = brokers.master("a"), brokers.slave(f"broker-{UNBROKEN[:50]}")
    third = brokers.slave("c")
    script, folder = axe(), SHOTS / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    wrong: dict[str, Any] = {}
    with (
        console(third) as slave_url,
        browser_page(bypass_csp=True, color_scheme=scheme, viewport=SIZES[size]) as page,
    ):

        def check(name: str) -> None:
            page.evaluate("document.fonts.ready")
            found = page.evaluate(f"({CHECK})()")
            found += complaints(page, script)
            if found:
                wrong[name] = found
                page.screenshot(path=str(folder / f"{name}-{size}-{scheme}.png"), full_page=True, animations="disabled")

        page.goto(f"{slave_url}/login")
        check("login")
        log_in(page, slave_url)
        page.locator(".role.slave").first.wait_for()
        page.get_by_text("this broker is not the master, which alone has rates").wait_for()
        check("slave")
        page.goto(f"{slave_url}/queues")
        page.locator("#live .bad").wait_for()
        check("slave-queues")
        page.goto(f"{slave_url}/")
        first.kill()
        page.locator(".role.gone").wait_for()
        page.locator(".takeovers rect").nth(1).wait_for()
        master = second if second.said(SERVING) else third
        with busy(master), console(master, by_name=False) as url:
            log_in(page, url)
            page.locator(".role.gone").wait_for()
            page.locator("#plot canvas").wait_for()
            check("overview")
            for listed in LISTS:
                page.goto(url + listed.path)
                page.locator("#live").wait_for()
                check(listed.path[1:])
            for name, path in pages_of_one().items():
                page.goto(url + path)
                page.get_by_role("heading", level=1).wait_for()
                check(name)
            page.goto(f"{url}/queue/{UNBROKEN}")
            page.get_by_role("link", name="ID:").first.click()
            page.get_by_role("heading", name="Body").wait_for()
            check("message")
            page.goto(f"{url}/queue/{long_name(5)}")
            page.get_by_label("To queue").fill(UNBROKEN)
            page.get_by_role("button", name="Move…").click()
            page.get_by_text("Move 6 messages").wait_for()
            check("confirm")
            page.goto(f"{url}/connections")
            page.get_by_role("button", name="Close… ").first.click()
            page.get_by_role("button", name="Yes").wait_for()
            check("confirm-close")
    assert wrong == {}, "\n".join(f"{name}: {found}" for name, found in wrong.items())


def pages_of_one() -> dict[str, str]:
    return {
        "queue": f"/queue/{UNBROKEN}",
        "queue-selector": f"/queue/{long_name(15)}?selector=colour%20%3D%20%27red%27",
        "queue-missing": "/queue/missing",
        "topic": f"/topic/{long_name(1)}",
        "send": "/send",
        "search": "/search?text=orders",
        "search-nothing": "/search",
    }
