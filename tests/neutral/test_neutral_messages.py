"""Messages of the neutral protocol: typed properties, kinds of content and native forms, beside STOMP's clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amq.core import values
from amq.core.message import BYTES, MAP, TEXT
from amq.core.values import Float32, Int8, Int16, Int32
from amq.protocols.commands import Scope
from tests.neutral.world import link, play, stomp
from tests.transports.served import Served

Q = "queue://q"
TYPED = {
    "bool": True,
    "int8": Int8(-5),
    "int16": Int16(300),
    "int32": Int32(70_000),
    "int64": 1 << 40,
    "float32": Float32(0.5),
    "float64": 0.1,
    "text": "héllo",
    "bytes": b"\x00\xff",
}
AS_TEXT = {
    "bool": "true",
    "int8": "-5",
    "int16": "300",
    "int32": "70000",
    "int64": str(1 << 40),
    "float32": "0.5",
    "float64": "0.1",
    "text": "héllo",
    "bytes": "AP8=",
}
CONTENT = {"a": Int32(1), "b": "x", "c": [True, 0.5]}
RAW = {"properties": {"n": Int16(7), "color": "red"}, "content": MAP, "correlation_id": "c-1", "type": "order"}


@pytest.mark.parametrize("takes_over", [True, False])
def test_types_are_kept(tmp_path: Path, takes_over: bool) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        envelope = {"message_id": "mine", "correlation_id": "c", "reply_to": "queue://r", "type": "t", "sent_ms": 5}
        await client.do(client.send(Q, values.encode(CONTENT), properties=TYPED, content=MAP, **envelope))
        if takes_over:
            served.take_over()
            client = await link(served)
        await client.do(client.subscribe("c", Q, acknowledges=False))
        [got] = await client.gets(1)
        found = got.about["properties"]
        assert found == TYPED
        assert {name: type(value) for name, value in found.items()} == {
            name: type(value) for name, value in TYPED.items()
        }
        assert (got.about["content"], values.decode(got.body)) == (MAP, CONTENT)
        assert {name: got.about[name] for name in envelope} == envelope

    play(tmp_path, test)


def test_stomp_sees_the_text_of_types_and_the_json_of_maps(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client, theirs = await link(served), await stomp(served)
        await theirs.say("SUBSCRIBE", id=1, destination="/queue/q")
        about = {"properties": TYPED, "content": MAP, "correlation_id": "c-1", "reply_to": "queue://r", "type": "t"}
        await client.do(client.send(Q, values.encode(CONTENT), **about))
        [message] = await theirs.messages(1)
        head, _, body = message.partition(b"\n\n")
        lines = head.decode().split("\n")
        assert {f"{name}:{value}" for name, value in AS_TEXT.items()} <= set(lines)
        assert {"correlation-id:c-1", "reply-to:/queue/r", "type:t", "content-type:application/json"} <= set(lines)
        assert json.loads(body) == {"a": 1, "b": "x", "c": [True, 0.5]}

    play(tmp_path, test)


def test_what_stomp_sends_is_text_here(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client, theirs = await link(served), await stomp(served)
        await client.do(client.subscribe("c", Q, acknowledges=False))
        await theirs.say("SEND", b"text", destination="/queue/q", n=7, reply_to="/queue/r", correlation_id="c-1")
        await theirs.say("SEND", b"bytes", destination="/queue/q", content_length=5)
        text, data = await client.gets(2)
        assert (text.about["content"], data.about["content"]) == (TEXT, BYTES)
        assert text.about["properties"] == {"n": "7"}
        assert (text.about["reply_to"], text.about["correlation_id"]) == ("queue://r", "c-1")

    play(tmp_path, test)


@pytest.mark.parametrize("native", [True, False])
def test_selectors_ask_for_types(tmp_path: Path, native: bool) -> None:
    """Also of either protocol's consumers, and of a native form, of which only that is read."""

    async def test(served: Served) -> None:
        client, theirs = await link(served), await stomp(served)
        selector = "n > 5 AND flag"
        await client.do(client.subscribe("c", "topic://t", selector=selector, acknowledges=False))
        await client.do(client.subscribe("d", "topic://t", selector="n = '7'", acknowledges=False))
        await theirs.say("SUBSCRIBE", id=1, destination="/topic/t", selector=selector)
        for n, flag in ((7, True), (7, False), (3, True)):
            properties = {"n": Int16(n), "flag": flag}
            about = (
                {"raw": values.encode({"properties": properties, "content": TEXT})}
                if native
                else {"properties": properties, "content": TEXT}
            )
            await client.do(client.send("topic://t", b"m%d" % n, **about))
        assert [each.consumer for each in await client.gets(1)] == ["c"], "a number is not a text"
        assert len(await theirs.messages(1)) == 1

    play(tmp_path, test)


@pytest.mark.parametrize("takes_over", [True, False])
def test_a_native_form_is_kept_byte_for_byte_and_converted_for_stomp(tmp_path: Path, takes_over: bool) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        raw, body = values.encode(RAW), values.encode(CONTENT)[::-1]
        for name in (Q, "queue://stomp"):
            await client.do(client.send(name, body, raw=raw))
        if takes_over:
            served.take_over()
            client = await link(served)
        await client.do(client.subscribe("c", Q, acknowledges=False))
        [got] = await client.gets(1)
        assert (got.about["raw"], got.body) == (raw, body)
        assert "properties" not in got.about
        theirs = await stomp(served)
        await theirs.say("SUBSCRIBE", id=1, destination="/queue/stomp")
        [message] = await theirs.messages(1)
        head, _, data = message.partition(b"\n\n")
        assert {"n:7", "color:red", "correlation-id:c-1", "type:order"} <= set(head.decode().split("\n"))
        assert json.loads(data) == {"a": 1, "b": "x", "c": [True, 0.5]}

    play(tmp_path, test)


def test_a_native_form_that_cannot_be_read_is_its_bare_body(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client, theirs = await link(served), await stomp(served)
        await theirs.say("SUBSCRIBE", id=1, destination="/queue/q")
        for raw in (b"\xff\xff", values.encode(["no map"]), values.encode({"nonsense": 1})):
            await client.do(client.send(Q, b"bare", raw=raw))
        assert [each.rpartition(b"\n\n")[2] for each in await theirs.messages(3)] == [b"bare"] * 3

    play(tmp_path, test)


def test_a_large_native_form_goes_out_as_it_came(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client, theirs = await link(served), await stomp(served)
        body, raw = bytes(range(256)) * (5 << 10), values.encode({"content": BYTES})
        await client.do(client.send(Q, body, raw=raw), client.send("queue://stomp", body, raw=raw))
        await client.do(client.subscribe("c", Q, acknowledges=True))
        [got] = await client.gets(1)
        assert (got.body == body, got.about["raw"]) == (True, raw)
        await theirs.say("SUBSCRIBE", id=1, destination="/queue/stomp")
        await served.until(lambda: body[::-1] in theirs.heard(), "the body, as STOMP's clients know it")

    play(tmp_path, test, memory_limit_bytes=64 << 20)


def test_a_message_that_cannot_be_stored_is_an_error_of_its_command(tmp_path: Path) -> None:
    """It spoils its transaction; its session and all behind it go on."""

    async def test(served: Served) -> None:
        client = await link(served)
        await client.do(client.open(1), client.begin("t", session=1))
        await client.do(client.send(Q, b"never alone", session=1, transaction="t"))
        await client.say(
            client.send(Q, b"", session=1, transaction="t", duplicate_id="x" * 70_000),
            client.send(Q, b"behind it", session=1),
            client.commit("t", session=1),
        )
        await client.until(lambda: len(client.errors) == 2, "both errors")
        found = [(each.session, each.scope, each.code) for each in client.errors]
        assert found == [(1, Scope.COMMAND, "MESSAGE_INVALID"), (1, Scope.COMMAND, "UNKNOWN_TRANSACTION")]
        assert client.is_open
        assert served.world.stored("q") == [b"behind it"]

    play(tmp_path, test)


def test_stomp_clients_choose_the_spelling_of_maps(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        ours = await link(served)
        readers = [await stomp(served) for _ in range(3)]
        for reader, more in zip(
            readers, ({}, {"transformation": "jms-map-xml"}, {"transformation": "jms-json"}), strict=True
        ):
            await reader.say("SUBSCRIBE", id=1, destination="/topic/t", **more)
        await ours.do(ours.send("topic://t", values.encode({"a": Int32(1)}), content=MAP))
        await readers[0].say("SEND", b'{"a": 2}', destination="/topic/t", transformation="jms-map-json")
        found = [[each.partition(b"\n\n") for each in await reader.messages(2)] for reader in readers]
        assert [[body for _, _, body in each] for each in found] == [
            [b'{"a": 1}', b'{"map": {"entry": [{"string": "a", "int": 2}]}}'],
            [b"<map><entry><string>a</string><int>%d</int></entry></map>" % number for number in (1, 2)],
            [b'{"map": {"entry": [{"string": "a", "int": %d}]}}' % number for number in (1, 2)],
        ]
        heads = [head for head, _, _ in found[1]]
        assert all(b"\ntransformation:jms-map-xml" in head for head in heads), heads

    play(tmp_path, test)
