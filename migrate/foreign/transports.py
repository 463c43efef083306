"""Where another broker listens: connector and acceptor URLs → our transports, and what their options become."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from amq.config.transport_url import DEFAULT_PORTS, TransportUrl, parse_transport_url
from amq_migrate.foreign.convert import integer, size
from amq_migrate.foreign.importing import FilePart, Importing, Rule, ignored, natural, unsupported
from amq_migrate.foreign.report import Status

TRANSPORTS_MAX = 100
URL_OPTIONS_MAX = 100
TLS_TOLD = (
    "amq speaks TLS with files in PEM form: convert the key store and set certificate and the transport by hand "
    "(docs/security.md)"
)
NOT_SPOKEN = (
    "amq speaks STOMP and OpenWire and not {}: let these clients speak either, or keep a broker that speaks it for them"
)
# scheme without +nio → (served here, what to say)
SCHEMES: Mapping[str, tuple[bool, str]] = {
    "stomp": (True, ""),
    "auto": (True, "its clients of STOMP and OpenWire are served; amq does not speak AMQP and MQTT"),
    "tcp": (True, ""),
    "stomp+ssl": (False, TLS_TOLD),
    "auto+ssl": (False, TLS_TOLD),
    "ssl": (False, TLS_TOLD),
    "http": (False, NOT_SPOKEN.format("OpenWire over HTTP")),
    "https": (False, NOT_SPOKEN.format("OpenWire over HTTP")),
    "udp": (False, NOT_SPOKEN.format("OpenWire over UDP")),
    "multicast": (False, NOT_SPOKEN.format("OpenWire over UDP")),
    "amqp": (False, NOT_SPOKEN.format("AMQP")),
    "amqp+ssl": (False, NOT_SPOKEN.format("AMQP")),
    "mqtt": (False, NOT_SPOKEN.format("MQTT")),
    "mqtt+ssl": (False, NOT_SPOKEN.format("MQTT")),
    "ws": (False, NOT_SPOKEN.format("STOMP over WebSocket")),
    "wss": (False, NOT_SPOKEN.format("STOMP over WebSocket")),
}


@dataclass(frozen=True, slots=True)
class ListeningUrl:
    """A connector's URL in its parts; `options` in the order of the URL."""

    scheme: str
    host: str
    port: int | None
    options: tuple[tuple[str, str], ...]


def listening_url(text: str) -> ListeningUrl:
    """Raises ValueError with the rest of a sentence. Artemis separates options by `;`, ActiveMQ by `&`."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL ({error})") from error
    pairs = [pair.partition("=") for pair in re.split("[&;]", parts.query) if pair]
    if len(pairs) > URL_OPTIONS_MAX:
        raise ValueError(f"has more than {URL_OPTIONS_MAX} options")
    options = tuple((name.strip(), unquote(value)) for name, _, value in pairs)
    return ListeningUrl(parts.scheme.lower(), host, port, options)


class ForeignTransports:
    """Gathers the transports of one file, and the limits that are in their URLs.

    maxConnections is one limit for all transports here, so it becomes the sum; maxFrameSize the largest.
    """

    def __init__(self) -> None:
        self._urls: dict[str, FilePart] = {}
        self._connections: list[tuple[FilePart, int]] = []
        self._frames: list[tuple[FilePart, int]] = []

    def serve(
        self, part: FilePart, url: ListeningUrl, options: Mapping[str, Rule], note: str = "", scheme: str = "stomp"
    ) -> None:
        """amq listens there, too, with a URL of that scheme."""
        host, port = url.host or "0.0.0.0", DEFAULT_PORTS[scheme] if url.port is None else url.port
        try:
            ours = str(parse_transport_url(str(TransportUrl(scheme, host, port))))
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f"{error}")
            return
        if ours in self._urls and not ours.endswith(":0"):
            part.tell(Status.UNSUPPORTED, f"{ours} is already served because of line {self._urls[ours].line}")
        elif len(self._urls) >= TRANSPORTS_MAX:
            part.tell(Status.UNSUPPORTED, f"there are more than {TRANSPORTS_MAX} transports")
        else:
            self._urls[ours] = part
            part.tell(Status.CARRIED, note, f"transports += {ours}")
        for name, raw in url.options:
            inner = part.option(name, raw)
            (options.get(name) or options.get(name.partition(".")[0] + ".") or UNKNOWN_OPTION).handle(inner)

    def connections(self, part: FilePart) -> None:
        self._gather(part, self._connections, integer)

    def frames(self, part: FilePart) -> None:
        self._gather(part, self._frames, size)

    def _gather(self, part: FilePart, found: list[tuple[FilePart, int]], convert: Callable[[str], int]) -> None:
        try:
            value = convert(part.value)
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f'"{part.value}" {error}')
            return
        if value > 0:
            found.append((part, value))
        else:
            part.tell(Status.NATURAL, "amq has another limit")

    def finish(self, importing: Importing) -> None:
        """Set the options for all that was gathered."""
        connections = sum(value for _, value in self._connections)
        for part, _ in self._connections:
            importing.set(part, "maxConnections", connections, "one limit for all transports", pattern="")
        frame = max((value for _, value in self._frames), default=0)
        for part, _ in self._frames:
            importing.set(part, "maxFrameSize", frame, "one limit for all transports", pattern="")
        if self._urls:
            importing.transports(tuple(self._urls), list(self._urls.values()))


def activemq_options(listening: ForeignTransports) -> dict[str, Rule]:
    """The rules for options in the URI of a transportConnector."""
    sockets = ignored("the kernel and uvloop take care of sockets")
    limits = "amq has its own rule: see unfinishedFrameTimeout, heartBeatReceive and connectionTtl"
    return {
        "maximumConnections": Rule(listening.connections),
        "wireFormat.maxFrameSize": Rule(listening.frames),
        "maxFrameSize": Rule(listening.frames),
        "wireFormat.": ignored("it belongs to OpenWire or to a limit that amq sets itself"),
        "transport.hbGracePeriodMultiplier": natural("a client may be silent for twice the heart-beat that was agreed"),
        "transport.defaultHeartBeat": unsupported("the client's heart-beat header counts; see heartBeatReceive"),
        "transport.soTimeout": natural(limits),
        "transport.maxInactivityDuration": natural(limits),
        "transport.trace": ignored("log with -o logLevel=debug"),
        "transport.": sockets,
        "allowLinkStealing": unsupported("set allowLinkStealing"),
        "socketBufferSize": sockets,
        "soTimeout": sockets,
        "backlog": sockets,
        "connectionTimeout": sockets,
        "keepAlive": sockets,
        "tcpNoDelay": sockets,
        "ioBufferSize": sockets,
        "trace": sockets,
        "daemon": sockets,
        "needClientAuth": unsupported(TLS_TOLD),
        "wantClientAuth": unsupported(TLS_TOLD),
        "auto.protocols": natural("amq serves STOMP and OpenWire"),
        "protocolDetectionTimeOut": natural("see connectTimeout"),
    }


def artemis_options(listening: ForeignTransports) -> dict[str, Rule]:
    """The rules for options in the URL of an acceptor."""
    sockets = ignored("the kernel and uvloop take care of sockets")
    other = ignored("it belongs to a protocol that amq does not speak")
    beats = natural("heart-beats are agreed with each client: see heartBeatSend, heartBeatReceive and connectionTtl")
    return {
        "protocols": natural(),
        "protocol": natural(),
        "actorThresholdBytes": sockets,
        "connectionsAllowed": Rule(listening.connections),
        "stompMaxFramePayloadLength": Rule(listening.frames),
        "sslEnabled": natural("off"),
        "connectionTtl": beats,
        "heartBeatToConnectionTtlModifier": beats,
        "connectionTTL": beats,
        "connectionTtlMin": beats,
        "connectionTtlMax": beats,
        "handshake-timeout": natural("see connectTimeout"),
        "stompEnableMessageId": natural("messages have their own ids"),
        "stompMinLargeMessageSize": natural("large bodies are read from the disk in slices"),
        "stompConsumerCredits": unsupported("set prefetchSize: amq counts messages, not bytes"),
        "stompConsumerWindowSize": unsupported("set prefetchSize: amq counts messages, not bytes"),
        "anycastPrefix": unsupported("amq knows the prefixes /queue/ and /topic/ alone"),
        "multicastPrefix": unsupported("amq knows the prefixes /queue/ and /topic/ alone"),
        "saslMechanisms": other,
        "amqpCredits": other,
        "amqpLowCredits": other,
        "amqpMinLargeMessageSize": other,
        "amqpDuplicateDetection": other,
        "amqpIdleTimeout": other,
        "supportAdvisory": other,
        "suppressInternalManagementObjects": other,
        "virtualTopicConsumerWildcards": other,
        "tcpSendBufferSize": sockets,
        "tcpReceiveBufferSize": sockets,
        "tcpNoDelay": sockets,
        "useEpoll": sockets,
        "batchDelay": sockets,
        "directDeliver": sockets,
        "nioRemotingThreads": sockets,
        "remotingThreads": sockets,
        "useKQueue": sockets,
        "backlog": sockets,
        "useNio": sockets,
        "useInvm": sockets,
        "localAddress": sockets,
        "writeBufferLowWaterMark": sockets,
        "writeBufferHighWaterMark": sockets,
        "autoStart": natural("while master"),
        "name": ignored(),
        "host": natural(),
        "port": natural(),
    }


UNKNOWN_OPTION = unsupported("amq does not know this option of a URL")
