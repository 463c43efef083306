"""Hints: the broker says why a queue does not drain, and says nothing of one that does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.management.managed import Managed, managed
from tests.service_world import Client


async def codes(made: Managed, name: str) -> dict[str, str]:
    return {hint["code"]: hint["text"] for hint in (await made.ask("GET", f"/queues/{name}/hints"))["items"]}


async def consumer(made: Managed, name: str, *headers: tuple[str, str]) -> Client:
    client = await made.client()
    await client.send(
        "SUBSCRIBE",
        ("id", "s"),
        ("destination", f"/queue/{name}"),
        ("ack", "client-individual"),
        *headers,
        ("receipt", "s"),
    )
    while (await client.receive()).command != "RECEIPT":
        pass
    return client


async def test_no_consumer_and_a_pause(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 3)
        assert list(await codes(made, "q")) == ["no-consumer"]
        await made.ask("POST", "/queues/q/pause")
        assert list(await codes(made, "q")) == ["paused", "no-consumer"]
        await made.ask("POST", "/queues/q/resume")
        await made.ask("POST", "/queues/q/purge")
        await consumer(made, "q")
        assert await codes(made, "q") == {}


@pytest.mark.parametrize(("prefetch", "code"), [("2", "slow"), ("100", "in-flight")])
async def test_a_consumer_that_acknowledges_nothing(tmp_path: Path, prefetch: str, code: str) -> None:
    async with managed(tmp_path) as made:
        await consumer(made, "q", ("activemq.prefetchSize", prefetch))
        await made.fill("q", 5)
        assert list(await codes(made, "q")) == [code]
        if code == "slow":
            assert "Its consumer holds 2 messages" in (await codes(made, "q"))["slow"]


async def test_selectors_that_match_nothing(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 5, ("colour", "red"))
        await consumer(made, "q", ("selector", "colour = 'blue'"))
        text = (await codes(made, "q"))["selector"]
        assert text.startswith("1 consumer, but its selector matches none of the first 5 messages: “colour = 'blue'”")
        await consumer(made, "q", ("selector", "colour = 'green'"))
        assert (await codes(made, "q"))["selector"].startswith("2 consumers, but their selectors match none")
        await consumer(made, "q", ("selector", "colour = 'red'"))
        assert "selector" not in await codes(made, "q")


async def test_a_message_that_comes_back(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        said: list[str] = []
        await made.fill("q", 2)
        for _ in range(3):
            client = await made.client()
            await client.send(
                "SUBSCRIBE",
                ("id", "s"),
                ("destination", "/queue/q"),
                ("ack", "client-individual"),
                ("activemq.prefetchSize", "1"),
            )
            assert (await client.receive()).command == "MESSAGE"
            await client.close()
            while (await made.ask("GET", "/queues/q"))["consumers"]:
                await asyncio.sleep(0.01)
            said.append((await codes(made, "q"))["redelivered"])
        assert "was redelivered once: a consumer failed on it, or ended before it acknowledged it." in said[0]
        assert "was redelivered 2 times: consumers fail on it, or end before they acknowledge it." in said[1]
        found = (await made.ask("GET", "/queues/q/hints"))["items"]
        (back,) = (hint for hint in found if hint["code"] == "redelivered")
        assert "was redelivered 3 times" in back["text"]
        assert back["id"] == (await made.ask("GET", "/queues/q/messages"))["items"][0]["id"]


async def test_dead_letters_are_named(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 1)
        client = await made.client()
        await client.send("SUBSCRIBE", ("id", "s"), ("destination", "/queue/q"), ("ack", "client-individual"))
        frame = await client.receive()
        await client.send("NACK", ("id", dict(frame.headers)["ack"]), ("receipt", "n"))
        assert (await client.receive()).command == "RECEIPT"
        assert "they are in DLQ.q" in (await codes(made, "q"))["dead-letters"]
        assert await codes(made, "DLQ.q") == {}


async def test_only_acknowledgements_in_open_transactions_are_called_set_apart(tmp_path: Path) -> None:
    """Messages between a queue and a consumer are no transaction's."""
    async with managed(tmp_path) as made:
        await made.fill("q", 2)
        client = await made.client()
        await client.send("SUBSCRIBE", ("id", "s"), ("destination", "/queue/q"), ("ack", "client-individual"))
        first, _ = [await client.receive() for _ in range(2)]
        assert "transactions" not in await codes(made, "q")
        await client.send("BEGIN", ("transaction", "t"))
        await client.send("ACK", ("id", first.headers["ack"]), ("transaction", "t"), ("receipt", "r"))
        assert (await client.receive()).command == "RECEIPT"
        assert (await codes(made, "q"))["transactions"].startswith("1 messages are acknowledged in transactions")
