"""Telemetry: spans and metrics of a program's messages, for OpenTelemetry. Extra: `pip install 'amq[otel]'`.

Nothing else imports this module, so a program that does not use it pays nothing. Names follow the semantic conventions
for messaging of OpenTelemetry, which are still in development. A message carries the context of its producer's span in
the headers `traceparent` and `tracestate` (W3C), and the spans of consumers have a link to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from opentelemetry import metrics, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from amq.client.message import ReceivedMessage
from amq.client.session import Consumer, Message, Producer
from amq.doors.clock import Clock, SystemClock

SYSTEM: Final = "amq"
TEMPORARY: Final = "(temporary)"  # a name for each would be a series for each
NAME: Final = "amq.client"
_W3C: Final = TraceContextTextMapPropagator()
Attributes = dict[str, str | int | bool]


class _Received(Protocol):
    """A message of either face."""

    @property
    def destination(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class Telemetry:
    """Makes spans and counts. One for a whole program; any thread."""

    def __init__(
        self,
        tracers: trace.TracerProvider | None = None,
        meters: metrics.MeterProvider | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Use these providers; None = those that the program has set for OpenTelemetry."""
        self._clock = clock or SystemClock()
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracers)
        meter = metrics.get_meter(NAME, meter_provider=meters)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that the program tried to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that the program received."
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration", "s", "How long a send or receive took."
        )
        self._process = meter.create_histogram("messaging.process.duration", "s", "How long the program's work took.")

    def send(
        self, producer: Producer, body: bytes | str, *, headers: Mapping[str, object] | None = None, **how: Any
    ) -> str:
        """Send as `producer.send` does, in a span `send QUEUE`."""
        with self.sending(producer.destination, headers) as carried:
            return producer.send(body, headers=carried, **how)

    @contextmanager
    def sending(self, destination: str, headers: Mapping[str, object] | None = None) -> Iterator[dict[str, object]]:
        """A span for one send inside the block, for the asyncio face too. Gives the headers to send with."""
        shown = _attributes(destination, "send")
        began = self._clock.monotonic()
        title = _title("send", shown)
        with self._tracer.start_as_current_span(title, kind=SpanKind.PRODUCER, attributes=shown) as span:
            carried: dict[str, str] = {}
            _W3C.inject(carried)
            failed = ""
            try:
                yield {**(headers or {}), **carried}
            except BaseException as error:
                failed = _fail(span, error)
                raise
            finally:
                measured = _measured(shown, failed)
                self._sent.add(1, measured)
                self._operation.record(self._clock.monotonic() - began, measured)

    def receive(self, consumer: Consumer, timeout: float | None = None) -> Message | None:
        """Receive as `consumer.receive` does, with a span `receive QUEUE` for each message that came."""
        began, began_ns = self._clock.monotonic(), self._clock.wall_ms() * 1_000_000
        message = consumer.receive(timeout)
        if message is not None:
            shown = _attributes(message.destination, "receive")
            span = self._tracer.start_span(
                _title("receive", shown),
                kind=SpanKind.CLIENT,
                attributes={**shown, **_of(message)},
                links=_links(message),
                start_time=began_ns,
            )
            span.end()
            measured = _measured(shown)
            self._consumed.add(1, measured)
            self._operation.record(self._clock.monotonic() - began, measured)
        return message

    @contextmanager
    def process(self, message: ReceivedMessage[Any]) -> Iterator[Span]:
        """A span `process QUEUE` for what the program does with `message` in the block, as the present span. An error
        that leaves the block is noted, and goes on."""
        shown = _attributes(message.destination, "process")
        began = self._clock.monotonic()
        with self._tracer.start_as_current_span(
            _title("process", shown),
            kind=SpanKind.CONSUMER,
            attributes={**shown, **_of(message)},
            links=_links(message),
        ) as span:
            failed = ""
            try:
                yield span
            except BaseException as error:
                failed = _fail(span, error)
                raise
            finally:
                self._process.record(self._clock.monotonic() - began, _measured(shown, failed))


def _attributes(destination: str, operation: str) -> Attributes:
    is_temporary = destination.startswith(("/temp-", "/remote-temp-"))
    found: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": TEMPORARY if is_temporary else _plain(destination),
    }
    if is_temporary:
        found["messaging.destination.temporary"] = True
    return found


def _plain(destination: str) -> str:
    return destination.removeprefix("/queue/").removeprefix("/topic/")


def _title(operation: str, shown: Attributes) -> str:
    return f"{operation} {shown['messaging.destination.name']}"


def _measured(shown: Attributes, failed: str = "") -> Attributes:
    """The attributes of metrics: those without which few series are enough."""
    found = {name: value for name, value in shown.items() if name != "messaging.operation.type"}
    return {**found, "error.type": failed} if failed else found


def _of(message: _Received) -> Attributes:
    return {"messaging.message.id": message.id, "messaging.message.body.size": len(message.body)}


def _links(message: _Received) -> list[Link]:
    """To the span in which it was sent, where its headers tell one."""
    found = trace.get_current_span(_W3C.extract(message.headers)).get_span_context()
    return [Link(found)] if found.is_valid else []


def _fail(span: Span, error: BaseException) -> str:
    name = getattr(error, "code", "") or type(error).__qualname__
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    return str(name)
