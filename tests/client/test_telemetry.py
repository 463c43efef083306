"""Spans and metrics of a program, as OpenTelemetry's own SDK gets them, with a real broker between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import amq
from amq.client.telemetry import TEMPORARY, Telemetry
from amq.core.errors import AmqError
from tests.brokers import Brokers
from tests.patience import DEADLINE_S


class Seen:
    """What the program told."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = tracers.get_tracer("program")
        self.telemetry = Telemetry(tracers, MeterProvider([self._reader]))

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._spans.get_finished_spans()}

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        found = [
            each
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == name
        ]
        return [point for each in found for point in each.data.data_points]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_a_consumer_s_spans_lead_to_the_producer_s(seen: Seen, brokers: Brokers) -> None:
    broker, telemetry = brokers.master(), seen.telemetry
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        with seen.tracer.start_as_current_span("order"):
            telemetry.send(session.producer("/queue/orders"), b"four", headers={"kind": "a", "tracestate": "x=1"})
        with session.consumer("/queue/orders") as consumer:
            message = telemetry.receive(consumer, 10)
            assert message is not None
            with telemetry.process(message) as span:
                span.set_attribute("mine", 1)
                message.ack(wait=True)
            assert telemetry.receive(consumer, 0) is None
    assert message.headers["kind"] == "a"
    spans = seen.spans
    assert set(spans) == {"order", "send orders", "receive orders", "process orders"}
    sent, received, processed = (spans[f"{name} orders"] for name in ("send", "receive", "process"))
    assert (sent.kind, received.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER)
    assert sent.parent == spans["order"].context
    assert sent.context is not None
    assert message.headers["traceparent"].split("-")[2] == f"{sent.context.span_id:016x}"
    for each in (received, processed):
        assert [link.context.span_id for link in each.links] == [sent.context.span_id]
        assert each.attributes is not None
        assert each.attributes["messaging.destination.name"] == "orders"
        assert each.attributes["messaging.message.id"] == message.id
        assert each.attributes["messaging.message.body.size"] == 4
    for name, operation in (("sent", "send"), ("consumed", "receive")):
        (point,) = seen.points(f"messaging.client.{name}.messages")
        assert point.value == 1
        assert dict(point.attributes) == {
            "messaging.system": "amq",
            "messaging.operation.name": operation,
            "messaging.destination.name": "orders",
        }
    durations = seen.points("messaging.client.operation.duration")
    counts = {point.attributes["messaging.operation.name"]: point.count for point in durations}
    assert counts == {"send": 1, "receive": 1}
    assert [point.count for point in seen.points("messaging.process.duration")] == [1]


def test_errors_are_noted_and_go_on(seen: Seen, brokers: Brokers) -> None:
    broker, telemetry = brokers.master(), seen.telemetry
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        session.producer("/queue/b").send(b"x")  # without a span
        with session.consumer("/queue/b") as consumer:
            message = consumer.receive(DEADLINE_S)
        assert message is not None
        with pytest.raises(ZeroDivisionError), telemetry.process(message):
            raise ZeroDivisionError
        with pytest.raises(AmqError) as refused:
            telemetry.send(session.producer("/queue/a"), b"x", cron="never")
    spans = seen.spans
    for name, told in (("send a", refused.value.code), ("process b", "ZeroDivisionError")):
        assert spans[name].status.status_code is StatusCode.ERROR
        assert (spans[name].attributes or {})["error.type"] == told
    assert not spans["process b"].links
    (point,) = seen.points("messaging.client.sent.messages")
    assert point.attributes["error.type"] == refused.value.code


def test_temporary_queues_are_one_series(seen: Seen) -> None:
    for number in range(3):
        with seen.telemetry.sending(f"/temp-queue/{number}", {"a": "b"}) as headers:
            assert set(headers) == {"a", "traceparent"}
    (point,) = seen.points("messaging.client.sent.messages")
    assert (point.value, point.attributes["messaging.destination.name"]) == (3, TEMPORARY)


def test_nothing_is_loaded_without_it() -> None:
    program = "import amq, amq.client.session, amq.client.aio, sys; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=False).returncode == 0
