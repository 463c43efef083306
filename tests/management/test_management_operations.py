"""Operations on queues: what they take, what they leave, and that nothing is in two queues or in none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amq.cluster.placement import Placement
from amq.core.errors import AmqError
from amq.management.listing import Row
from tests.management.managed import Managed, managed

SMALL: dict[str, Any] = {"memory_limit_bytes": 1 << 20}  # most of what waits is on disk alone


async def counts(made: Managed, *names: str) -> list[int]:
    rows = {row["name"]: row for row in (await made.ask("GET", "/queues"))["items"]}
    return [rows[name]["messages"] if name in rows else 0 for name in names]


async def refused(made: Managed, method: str, path: str, body: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(AmqError) as caught:
        await made.ask(method, path, body, **more)
    return caught.value.code


async def test_a_queue_shows_its_figures(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("orders", 3)
        client = await made.client()
        await client.subscribe("/queue/orders")
        await client.ack(await client.receive())
        row = await made.ask("GET", "/queues/orders")
        expected = {"name": "orders", "messages": 2, "consumers": 1, "enqueued": 3, "dequeued": 1, "paused": False}
        assert expected.items() <= row.items()
        assert row["in_flight"] == 2
        assert row["oldest_ms"] > 0
        (consumer,) = (await made.ask("GET", "/consumers"))["items"]
        assert (consumer["destination"], consumer["in_flight"]) == ("orders", 2)
        (connection,) = (await made.ask("GET", "/connections"))["items"]
        assert (connection["user"], connection["protocol"], connection["consumers"]) == ("anybody", "stomp", 1)
        assert (await made.ask("GET", "/segments"))["items"][0]["live_messages"] == 2
        assert (await made.ask("GET", "/totals"))["connections"] == 1


@pytest.mark.parametrize("options", [{}, SMALL], ids=["memory", "disk"])
async def test_purge_takes_what_waits_and_leaves_what_a_consumer_has(tmp_path: Path, options: dict[str, Any]) -> None:
    async with managed(tmp_path, **options) as made:
        await made.fill("q", 1500, size=1000)
        client = await made.client()
        await client.send(
            "SUBSCRIBE",
            ("id", "0"),
            ("destination", "/queue/q"),
            ("ack", "client-individual"),
            ("activemq.prefetchSize", "2"),
        )
        held = [await client.receive(), await client.receive()]
        assert (await made.ask("POST", "/queues/q/purge", {"dry_run": True})) == {
            "count": 1498,
            "complete": True,
            "dry_run": True,
        }
        assert await made.ask("POST", "/queues/q/purge") == {"count": 1498}
        row = await made.ask("GET", "/queues/q")
        assert (row["messages"], row["in_flight"], row["dequeued"]) == (2, 2, 1498)
        for message in held:
            await client.ack(message)
        assert await counts(made, "q") == [0]
        assert made.broker.memory.taken_bytes == 0
        await made.stop()
        await made.start()
        assert await counts(made, "q") == [0], "also for the next master"


async def test_purge_leaves_what_comes_meanwhile(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 2000, size=200)
        broker = made.broker
        at_first = broker.newest_seq
        purging = asyncio.create_task(made.ask("POST", "/queues/q/purge"))
        await asyncio.sleep(0)
        await made.fill("q", 5)
        found = await purging
        left = await made.bodies("q")
        assert found["count"] + len(left) == 2005
        assert found["count"] >= 2000
        assert broker.newest_seq > at_first


async def test_nothing_is_moved_to_where_it_does_not_live(tmp_path: Path) -> None:
    """In a store of a cluster."""
    table = Placement.even(1, ["s1", "s2"])
    names = [f"n{number}" for number in range(99)]
    here, there = (next(each for each in names if table.home_of("queue://" + each) == store) for store in table.stores)
    placed = {"cluster": "c", "store": "s1", "number": 1, "placement": table.to_json()}
    async with managed(tmp_path, placed=placed) as made:
        await made.fill(here, 3)
        for path, body in (
            (f"/queues/{here}/move", {"to": there}),
            (f"/queues/{here}/copy", {"to": there}),
            (f"/queues/{there}/messages", {"body": "x"}),
        ):
            with pytest.raises(AmqError) as caught:
                await made.ask("POST", path, body)
            assert caught.value.code == "MOVED", path
        assert await counts(made, here) == [3]


@pytest.mark.parametrize("options", [{}, SMALL], ids=["memory", "disk"])
async def test_move_by_selector_keeps_each_message_once(tmp_path: Path, options: dict[str, Any]) -> None:
    async with managed(tmp_path, **options) as made:
        await made.fill("from", 300, ("colour", "red"), size=2000)
        await made.fill("from", 300, ("colour", "blue"), size=2000)
        move = {"to": "to", "selector": "colour = 'blue'"}
        assert (await made.ask("POST", "/queues/from/move", {**move, "dry_run": True}))["count"] == 300
        assert await made.ask("POST", "/queues/from/move", move) == {"count": 300}
        assert await counts(made, "from", "to") == [300, 300]
        expected = [f"from {number}" for number in range(300)]
        await made.stop()
        await made.start()
        assert await made.bodies("from") == expected
        assert await made.bodies("to") == expected
        page = await made.ask("GET", "/queues/to/messages", limit=1)
        assert page["items"][0]["properties"]["colour"] == "blue"


async def test_copy_and_limits(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 50)
        assert await made.ask("POST", "/queues/q/copy", {"to": "q", "limit": 10}) == {"count": 10}
        assert await made.ask("POST", "/queues/q/copy", {"to": "q"}) == {"count": 60}, "it ends"
        assert await made.ask("POST", "/queues/q/purge", {"limit": 100}) == {"count": 100}
        assert await counts(made, "q") == [20]
        assert await refused(made, "POST", "/queues/q/move", {"to": "q"}) == "REQUEST_INVALID"
        assert await refused(made, "POST", "/queues/none/purge") == "NOT_FOUND"
        assert await refused(made, "POST", "/queues/q/purge", {"selector": "colour = "}) == "INVALID_SELECTOR"


async def test_a_full_target_takes_no_more(tmp_path: Path) -> None:
    async with managed(tmp_path, queue_limit_bytes=220_000) as made:
        await made.fill("q", 200, size=1000)
        await made.fill("r", 100, size=1000)
        assert await refused(made, "POST", "/queues/q/move", {"to": "r"}) == "NO_ROOM"
        left, there = await counts(made, "q", "r")
        assert left + there == 300
        assert 100 < there < 300


async def test_one_message(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 3)
        rows: list[Row] = (await made.ask("GET", "/queues/q/messages"))["items"]
        id = rows[1]["id"]
        assert (await made.ask("GET", f"/messages/{id}"))["queue"] == "q"
        assert (await made.ask("GET", f"/queues/q/messages/{id}"))["body"].strip() == "q 1"
        assert await made.ask("DELETE", f"/queues/q/messages/{id}") == {"count": 1}
        assert await refused(made, "DELETE", f"/queues/q/messages/{id}") == "MESSAGE_UNKNOWN"
        assert await refused(made, "GET", f"/messages/{id}") == "MESSAGE_UNKNOWN"
        assert await made.bodies("q") == ["q 0", "q 2"]
        client = await made.client()
        await client.subscribe("/queue/q")
        await client.receive()
        held = f"/queues/q/messages/{rows[0]['id']}"
        assert await refused(made, "DELETE", held) == "MESSAGE_IN_USE"


async def test_pause_and_resume(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 1)
        await made.ask("POST", "/queues/q/pause")
        client = await made.client()
        await client.subscribe("/queue/q")
        await made.fill("q", 1)
        assert await made.bodies("q") == ["q 0", "q 0"], "a paused queue can be browsed"
        assert (await made.ask("GET", "/queues/q"))["in_flight"] == 0
        assert (await made.ask("GET", "/queues", filter="consumers>=1"))["items"][0]["paused"] is True
        await made.ask("POST", "/queues/q/resume")
        assert (await client.receive()).body.strip() == b"q 0"


async def test_dead_letters_are_grouped_and_sent_back(tmp_path: Path) -> None:
    async with managed(tmp_path, maximum_redeliveries=0) as made:
        await made.fill("orders", 3, ("colour", "red"))
        client = await made.client()
        await client.subscribe("/queue/orders")
        for message in [await client.receive() for _ in range(3)]:
            await client.send("NACK", ("id", message.headers["ack"]), ("receipt", "n"))
            assert (await client.receive()).command == "RECEIPT"
        await client.close()
        made.clients.remove(client)
        found = await made.ask("GET", "/dead-letters")
        (group,) = found["items"]
        assert (group["queue"], group["meant_for"], group["messages"]) == ("DLQ.orders", "orders", 3)
        assert found["complete"]
        first = (await made.ask("GET", "/queues/DLQ.orders/messages"))["items"][0]
        assert await made.ask("POST", "/queues/DLQ.orders/retry", {"ids": [first["id"]]}) == {"count": 1}
        assert await made.ask("POST", "/queues/DLQ.orders/retry") == {"count": 2}
        rows = (await made.ask("GET", "/queues/orders/messages"))["items"]
        assert [row["body"].strip() for row in rows] == ["orders 0", "orders 1", "orders 2"]
        assert all(row["properties"]["colour"] == "red" for row in rows)
        assert not any("dead-letter-reason" in row["properties"] for row in rows)


async def test_send_and_what_is_shown_of_a_body(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.ask("POST", "/queues/q/messages", {"body": "grüße", "properties": {"n": "1"}, "priority": 9})
        await made.ask("POST", "/queues/q/messages", {"body_base64": "AAH/", "persistent": False})
        text, binary = (await made.ask("GET", "/queues/q/messages"))["items"]
        assert (text["body"], text["properties"], text["priority"]) == ("grüße", {"n": "1"}, 9)
        assert text["persistent"] is True
        assert (binary["body_base64"], binary["persistent"], binary["bytes"]) == ("AAH/", False, 3)
        short = (await made.ask("GET", "/queues/q/messages", body=3))["items"][0]
        assert (short["body"], short["truncated"]) == ("gr", True), "no half character"
        client = await made.client()
        await client.send("SUBSCRIBE", ("id", "0"), ("destination", "/topic/t"), ("receipt", "s"))
        assert (await client.receive()).command == "RECEIPT"
        await made.ask("POST", "/topics/t/messages", {"body": "hello"})
        assert (await client.receive()).body == b"hello"
        expected = {"name": "t", "consumers": 1, "durable_subscriptions": 0, "enqueued": 1}
        assert await made.ask("GET", "/topics/t") == (await made.ask("GET", "/topics"))["items"][0] == expected
        assert await refused(made, "GET", "/topics/u") == "NOT_FOUND"
        for wrong in ({"priority": 10}, {"body": 1}, {"properties": {"a": 1}}, {"body_base64": "?"}):
            assert await refused(made, "POST", "/queues/q/messages", wrong) == "REQUEST_INVALID"


async def test_the_consumers_of_a_topic_are_all_that_get_its_messages(tmp_path: Path) -> None:
    """One with its name, one of a pattern, and durable ones: of a name, of a pattern, of a list that names it twice.
    A durable subscription whose client is away has none."""
    async with managed(tmp_path) as made:
        client = await made.client()
        sources = ("t.a", "t.*", "t.a", "t.>", "t.*,/topic/t.a,/topic/u", "other", "t.a.b")
        for number, source in enumerate(sources):
            name = [("activemq.subscriptionName", f"d{number}")] if number >= 2 else []
            await client.send(
                "SUBSCRIBE", ("id", str(number)), ("destination", f"/topic/{source}"), *name, ("receipt", "s")
            )
            assert (await client.receive()).command == "RECEIPT"
        assert {row["name"]: row["consumers"] for row in (await made.ask("GET", "/topics"))["items"]} == {
            "t.a": 5,
            "u": 1,
            "other": 1,
            "t.a.b": 2,
        }
        assert (await made.ask("GET", "/topics/t.a"))["consumers"] == 5
        assert made.broker.durables.consumers("topic://t.a") == 3
        await client.send("UNSUBSCRIBE", ("id", "2"), ("receipt", "u"))
        assert (await client.receive()).command == "RECEIPT"
        row = await made.ask("GET", "/topics/t.a")
        assert (row["consumers"], row["durable_subscriptions"]) == (4, 2)
        assert made.broker.durables.consumers("topic://t.a") == 2


async def test_deleting_what_is_not_used(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 5)
        client = await made.client()
        await client.send(
            "SUBSCRIBE",
            ("id", "d"),
            ("destination", "/topic/t"),
            ("activemq.subscriptionName", "durable"),
            ("receipt", "s"),
        )
        assert (await client.receive()).command == "RECEIPT"
        (row,) = (await made.ask("GET", "/subscriptions"))["items"]
        assert (row["name"], row["topics"], row["consumers"]) == ("durable", "topic://t", 1)
        path = f"/subscriptions/{row['client_id'] or '-'}/durable"
        assert await refused(made, "DELETE", path) == "SUBSCRIPTION_IN_USE"
        (connection,) = (await made.ask("GET", "/connections"))["items"]
        assert await made.ask("DELETE", f"/connections/{connection['name']}") == {}
        frame = await client.receive()
        assert (frame.command, "operator" in frame.body.decode() or "operator" in str(frame.headers)) == ("ERROR", True)
        assert await made.ask("DELETE", path) == {}
        assert (await made.ask("GET", "/subscriptions"))["items"] == []
        assert await made.ask("DELETE", "/queues/q") == {"count": 5}
        assert await counts(made, "q") == [0]
