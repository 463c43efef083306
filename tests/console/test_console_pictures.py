"""The pictures of the console in README and docs: real brokers that are killed, and five faults as operators meet them.
Each fault is made, and found with the console alone: `make pictures` writes docs/pictures, a plain run
build/screenshots.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import SERVING, Broker, Brokers

import amq as client
from amq.core.errors import AmqError
from tests.console.browsers import HEIGHT, PATIENCE_MS, WIDTH, browser_page, console, log_in, shot
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
POINTS = 8  # of a plot, one in 2 s
PICTURE_BYTES_MAX = 128 << 10
SMALL = {
    "journalSegmentSize": "256KiB",
    "journalBatchSize": "64KiB",
    "journalReserve": "256KiB",
    "storeFreeFloor": "256KiB",
}
TALL = 1060  # the whole overview
PHONE = {"width": 390, "height": 844}


def picture(page: Any, name: str, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    data = shot(page, f"console-{name}").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == size
    assert len(data) <= PICTURE_BYTES_MAX, f"{name}: {len(data)} bytes"


@contextmanager
def working(*jobs: Callable[[threading.Event], None]) -> Iterator[None]:
    """Each job runs in a thread until the event is set. A job that fails, fails the test."""
    stop, failures = threading.Event(), list[BaseException]()

    def run(job: Callable[[threading.Event], None]) -> None:
        try:
            job(stop)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it fails the test below)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def url_of(*brokers: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{each.port}' for each in brokers)})"


def producing(url: str, queue: str, every_s: float, **headers: str) -> Callable[[threading.Event], None]:
    def job(stop: threading.Event) -> None:
        with client.connect(url) as connection, connection.session() as session:
            producer = session.producer(f"/queue/{queue}")
            number = 0
            while not stop.wait(every_s):
                number += 1
                producer.send(f'{{"number": {number}, "queue": "{queue}"}}', headers=headers)

    return job


def consuming(url: str, queue: str, every_s: float, **more: Any) -> Callable[[threading.Event], None]:
    def job(stop: threading.Event) -> None:
        with client.connect(url, client_id=f"{queue}-worker") as connection, connection.session() as session:
            consumer = session.consumer(f"/queue/{queue}", **more)
            while not stop.wait(every_s):
                message = consumer.receive(0.2)
                if message is not None:
                    message.ack()

    return job


def drawn(page: Any) -> None:
    """Until the plot has this many points, or more."""
    from playwright.sync_api import expect  # `browser_page` has said so where it is missing

    points = re.compile("|".join(str(count) for count in range(POINTS, 10 * POINTS)))
    expect(page.locator("#plot")).to_have_attribute("data-points", points, timeout=PATIENCE_MS)


def fill(url: str, queue: str, count: int, body: str = "order", **headers: str) -> None:
    with client.connect(url) as connection, connection.session() as session:
        producer = session.producer(f"/queue/{queue}")
        for number in range(count):
            producer.send(f"{body} {number}", headers=headers, wait=False)
        producer.flush()


def refuse(url: str, queue: str, count: int) -> None:
    with client.connect(url) as connection, connection.session() as session:
        consumer = session.consumer(f"/queue/{queue}")
        for _ in range(count):
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            message.nack(wait=True)


def test_pictures_of_a_group_that_loses_its_masters(brokers: Brokers) -> None:
    a, b, c = brokers.master("a"), brokers.slave("b"), brokers.slave("c")
    url = url_of(a, b, c)
    fill(url, "invoices", 40)
    fill(url, "failed", 3)
    refuse(url, "failed", 3)
    with (
        console(c, by_name=False) as at,
        browser_page() as page,
        working(producing(url, "orders", 0.05, colour="red"), consuming(url, "orders", 0.01)),
    ):
        log_in(page, at)
        page.locator(".role.master").wait_for()
        a.kill()
        page.get_by_role("rowheader", name="2", exact=True).wait_for()
        second, third = (b, c) if b.said(SERVING) else (c, b)
        second.wait_serving()
        second.kill()
        third.wait_serving()
        for broker in (a, second):
            broker.start().wait_slave()
            broker.wait_ready()
        page.get_by_role("rowheader", name="3", exact=True).wait_for()
        check_the_master(page, at)


def check_the_master(page: Any, at: str) -> None:
    page.set_viewport_size({"width": WIDTH, "height": TALL})
    page.goto(f"{at}/")
    drawn(page)
    assert page.locator(".takeovers rect").count() == 3
    picture(page, "overview", (WIDTH, TALL))
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto(f"{at}/queues")
    page.get_by_role("link", name="invoices").wait_for()
    picture(page, "queues")
    page.goto(f"{at}/queue/orders")
    drawn(page)
    picture(page, "queue")
    page.goto(f"{at}/dead-letters")
    page.get_by_text("refused by the consumer").wait_for()
    picture(page, "dead-letters")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    page.goto(f"{at}/queue/invoices")
    page.get_by_text("It has no consumer.").wait_for()
    picture(page, "phone", (PHONE["width"], PHONE["height"]))


# -- five faults: docs/operations.md leads an operator through them --------------------------------------------------


def find(page: Any, at: str, queue: str, cause: str) -> None:
    """As an operator does: overview, queues, the queue; there stands the cause."""
    page.goto(f"{at}/")
    page.get_by_role("navigation").get_by_role("link", name="Queues", exact=True).click()
    page.get_by_role("link", name=queue, exact=True).click()
    page.locator(".hint", has_text=cause).first.wait_for()


@pytest.mark.thorough
def test_no_consumer(brokers: Brokers) -> None:
    broker = brokers.master("a")
    fill(url_of(broker), "invoices", 40)
    with console(broker) as at, browser_page() as page, working(producing(url_of(broker), "invoices", 0.5)):
        log_in(page, at)
        page.get_by_text("1 queue with messages and without a consumer").wait_for()
        find(page, at, "invoices", "It has no consumer.")
        drawn(page)
        page.locator("#rates", has_text="it grows").wait_for()
        picture(page, "no-consumer")


@pytest.mark.thorough
def test_a_slow_consumer(brokers: Brokers) -> None:
    broker = brokers.master("a")
    url = url_of(broker)
    fill(url, "thumbnails", 40)
    with (
        console(broker) as at,
        browser_page() as page,
        working(producing(url, "thumbnails", 0.1), consuming(url, "thumbnails", 1.0, prefetch=10)),
    ):
        log_in(page, at)
        find(page, at, "thumbnails", "Its consumer holds 10 messages, as many as the prefetch allows")
        drawn(page)
        page.locator("#rates", has_text="it grows").wait_for()
        picture(page, "slow-consumer")
        page.get_by_role("navigation").get_by_role("link", name="Consumers").click()
        page.get_by_role("cell", name="thumbnails-worker", exact=True).wait_for()


@pytest.mark.thorough
def test_a_poison_message(brokers: Brokers) -> None:
    broker = brokers.master("a", maximumRedeliveries=-1)
    url = url_of(broker)
    fill(url, "payments", 1, "amount=12,50 EUR; comma where a dot belongs")
    fill(url, "payments", 9, "amount=12.50 EUR")
    for _ in range(5):  # a consumer that dies of the first message
        with broker.connect() as connection:
            connection.send(
                "SUBSCRIBE",
                {"destination": "/queue/payments", "id": "1", "ack": "client-individual", "activemq.prefetchSize": 1},
            )
            assert b"comma" in connection.next_frame(DEADLINE_S).body
    with console(broker) as at, browser_page() as page:
        log_in(page, at)
        find(page, at, "payments", "was redelivered 5 times")
        picture(page, "poison")
        page.get_by_role("link", name="Open the message").click()
        page.get_by_text("comma where a dot belongs").wait_for()
        picture(page, "message")
        page.get_by_label("To queue").fill("payments.broken")
        page.get_by_role("button", name="Move…").click()
        page.get_by_text("Move 1 message to").wait_for()


@pytest.mark.thorough
def test_a_selector_that_matches_nothing(brokers: Brokers) -> None:
    broker = brokers.master("a")
    url = url_of(broker)
    with (
        console(broker) as at,
        browser_page() as page,
        working(
            producing(url, "alerts", 0.2, level="error"), consuming(url, "alerts", 0.1, selector="level = 'ERROR'")
        ),
    ):
        log_in(page, at)
        find(page, at, "alerts", "1 consumer, but its selector matches none of the first")
        drawn(page)
        picture(page, "selector")


def test_a_full_disk(brokers: Brokers, small_disk: Path) -> None:
    brokers.store = small_disk / "store"
    broker = brokers.master("a", **SMALL)
    url = url_of(broker)
    fill(url, "parcels", 30)
    with console(broker) as at, browser_page() as page:
        log_in(page, at)
        with open(small_disk / "ballast", "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(1 << 16))
        with client.connect(url) as connection, connection.session() as session:
            producer = session.producer("/queue/parcels")
            with pytest.raises(AmqError):
                for _ in range(1000):
                    producer.send("x" * 10_000)
        page.get_by_text("The disk of the store is full").wait_for()
        picture(page, "disk-full")
        find(page, at, "parcels", "The disk of the store is full")
        os.unlink(small_disk / "ballast")
        page.goto(f"{at}/history")
        page.get_by_text("the disk of the store has room again").wait_for()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("a full disk needs a file system of its own: run as root")
        pytest.skip("a full disk needs a file system of its own, and so root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=True)
    try:
        yield small
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
