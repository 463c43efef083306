"""NodeOptions: the options of scope node. They belong to the process: its ports, the limits of its clients, its log."""

from __future__ import annotations

from dataclasses import dataclass

from amq.config.option import OptionScope, Section
from amq.config.security_options import SecurityOptions

BROKER = Section(OptionScope.NODE, "broker")
HA = Section(OptionScope.NODE, "ha")
LIMITS = Section(OptionScope.NODE, "limits")
STOMP = Section(OptionScope.NODE, "stomp")
OPENWIRE = Section(OptionScope.NODE, "openwire")
LOG = Section(OptionScope.NODE, "log")


@dataclass(frozen=True)
class NodeOptions(SecurityOptions):
    """Durations are seconds (`_s`), sizes bytes (`_bytes`)."""

    __slots__ = ()

    transports: tuple[str, ...] = BROKER.transports(
        "stomp://127.0.0.1:61613",
        "URLs on which the broker serves clients while it is master.",
        "Use `stomp://0.0.0.0:61613` if clients run on other hosts, and give them logins (see usersFile).",
        elsewhere=("transportConnectors", "acceptors"),
    )
    management_socket: str = BROKER.text(
        "auto",
        "Path of the Unix socket at which `amq queues`, the other commands of operators and the console reach this "
        "broker. Only its own user and root may connect. auto: NAME-….sock in $RUNTIME_DIRECTORY/amq, "
        "$XDG_RUNTIME_DIR/amq or /tmp/amq-UID. none: there is no such socket.",
        "Give a path if programs in other containers must reach the socket.",
    )
    probe_listen: str = BROKER.text(
        "",
        "HOST:PORT where the broker itself answers /livez, /readyz and /masterz, without a login and over plain HTTP; "
        "blank = nowhere.",
        "Set it for Kubernetes and load balancers, such as 0.0.0.0:8162: a console could be held up by others.",
    )
    link_listen: str = BROKER.text(
        "",
        "URL on which the gateways of a cluster reach this broker while it is master: tcp://HOST:PORT, or "
        "ssl://HOST:PORT with the certificate of the transports; port 0 = any. Blank = nowhere.",
        "`amq start --cluster` sets it.",
    )
    link_secret_file: str = BROKER.path(
        "",
        "File with the secret that gateways must know at linkListen, at least 16 bytes, which only the broker's user "
        "may read.",
        "Set it with linkListen, to the file `secret` of the cluster's directory.",
    )

    wait_for_activation: bool = HA.boolean(
        False,
        "Whether the broker reports that it is ready only once it is master. Otherwise a slave is as ready as a "
        "master.",
        "Set it if what starts after the broker needs a master on this host (systemd: After=, Type=notify).",
        elsewhere=("wait-for-activation",),
    )
    advertised_transports: tuple[str, ...] = HA.addresses(
        "",
        "URLs under which clients reach this broker while it is master; the group tells them to its clients.",
        "Set it if clients do not reach the broker at the address on which it listens: behind NAT or a proxy, in a "
        "container, or under a name that the host does not have itself.",
        special="blank = transports, with the host's name in place of 0.0.0.0",
        reload=True,
        elsewhere=("publishedAddressPolicy", "connector-ref"),
    )

    max_connections: int = LIMITS.integer(
        10_000,
        "Most client connections at a time. At the limit, the oldest connection that has not logged in within a second "
        "gives way; if there is none, the broker tells the new one so and closes it. A process that may open few files "
        "(`ulimit -n`) serves fewer.",
        "Use fewer to keep memory for those that are there.",
        minimum=1,
        maximum=1_000_000,
        reload=True,
        elsewhere=("maximumConnections", "connectionsAllowed"),
    )
    max_connections_per_address: int = LIMITS.integer(
        0,
        "Most connections of one address at a time. An IPv6 address counts by its network, a /64.",
        "Set it if one host must not take the connections of all others.",
        minimum=0,
        maximum=1_000_000,
        special="0 = as many as maxConnections allows",
        reload=True,
    )
    max_connections_per_user: int = LIMITS.integer(
        0,
        "Most connections of one user at a time.",
        "Set it if one user must not take the connections of all others.",
        minimum=0,
        maximum=1_000_000,
        special="0 = as many as maxConnections allows",
        reload=True,
    )
    failed_logins_per_minute: int = LIMITS.integer(
        60,
        "So many wrong logins an address, or an IPv6 network (/64), may send within a minute; then the broker refuses "
        "all of its logins for the rest of that minute.",
        "Use fewer on a network of strangers, more if many clients share one address (NAT).",
        minimum=0,
        maximum=100_000,
        special="0 = any number",
        reload=True,
    )
    new_connections_per_minute: int = LIMITS.integer(
        0,
        "This many connections an address, or an IPv6 network (/64), may open within a minute; the broker refuses "
        "further ones.",
        "Set it if a client that connects again and again must not keep the broker busy. Allow for all clients of an "
        "address (NAT), which connect at once after a takeover.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    throttle_messages: int = LIMITS.integer(
        0,
        "Most messages that a user may send in a second, over all connections. The broker reads these connections more "
        "slowly, so that their producers wait; nothing is refused.",
        "Set it if one user must not take the rate of all others.",
        minimum=0,
        maximum=10_000_000,
        special="0 = any number",
        reload=True,
        elsewhere=("throttle",),
    )
    throttle_size_bytes: int = LIMITS.size(
        0,
        "Most bytes that the broker reads from a user in a second, over all connections. As throttleMessages.",
        "Set it if one user must not take the disk and the network of all others.",
        minimum=0,
        maximum=1 << 40,
        special="0 = any number",
        reload=True,
    )
    max_frame_size_bytes: int = LIMITS.size(
        "100MiB",
        "Largest message body.",
        "Use a lower limit to find mistakes sooner if messages are known to be small.",
        minimum=1 << 10,
        maximum=1 << 30,
        reload=True,
        elsewhere=("wireFormat.maxFrameSize", "max_message_size"),
    )
    max_header_count: int = LIMITS.integer(
        1000,
        "Most headers of one message or command, and most properties of an OpenWire message.",
        "Rarely needed.",
        minimum=16,
        maximum=100_000,
        reload=True,
    )
    max_header_size_bytes: int = LIMITS.size(
        "10KiB",
        "Longest header, name and value together.",
        "Use more if applications carry large tokens in headers.",
        minimum=256,
        maximum=1 << 20,
        reload=True,
    )
    max_header_block_size_bytes: int = LIMITS.size(
        "64KiB",
        "Most bytes that all headers of one message or command take together.",
        "Use more if applications carry much in headers.",
        minimum=256,
        maximum=16 << 20,
        reload=True,
    )
    unfinished_frame_timeout_s: float = LIMITS.duration(
        "30s",
        "How long a client may take from the first to the last byte of a command before it is disconnected, and a "
        "second more for each 64 KiB that came.",
        "Use more if clients pause for long in the middle of a message.",
        minimum=100,
        maximum=86_400_000,
        reload=True,
    )
    connect_timeout_s: float = LIMITS.duration(
        "10s",
        "How long a new connection may take to send its login before the broker closes it. The time that the broker "
        "takes to check the login does not count.",
        "Use more if clients are slow to log in.",
        minimum=100,
        maximum=3_600_000,
        reload=True,
        elsewhere=("handshake_timeout",),
    )
    max_handshakes: int = LIMITS.integer(
        64,
        "How many TLS handshakes are in progress at a time; further clients wait in the kernel. If others wait, a "
        "handshake that has taken a second gives way.",
        "Use fewer on a slow host, to keep time for the clients that are in.",
        minimum=1,
        maximum=10_000,
        reload=True,
    )
    handshake_timeout_s: float = LIMITS.duration(
        "10s",
        "How long a TLS handshake may take before the broker closes the connection.",
        "Use more if clients are behind a very slow network.",
        minimum=100,
        maximum=3_600_000,
        reload=True,
    )
    connection_ttl_s: float = LIMITS.duration(
        "60s",
        "How long the host of a client may leave TCP without an answer before the broker closes the connection. It "
        "finds hosts that vanish without a word if their clients send no heart-beats.",
        "Use more if connections must survive a network that is away for longer.",
        minimum=0,
        maximum=86_400_000,
        special="0 = never",
        reload=True,
        elsewhere=("connection-ttl",),
    )
    reconnect_window_s: float = LIMITS.duration(
        "1m",
        "How long the broker keeps, at most, what a client held whose connection broke without a word: unacknowledged "
        "messages, open transactions, temporary queues. Only a client that asks for it (`reconnectWindow` of its URL, "
        "which may be shorter) can come back to it. The broker keeps up to maxConnections such connections besides "
        "those that are there.",
        "Use less if other consumers must get the messages of a dead client sooner, whatever it asked for.",
        minimum=0,
        maximum=3_600_000,
        special="0 = never: all of it goes back at once",
        reload=True,
    )
    confirmation_window_size_bytes: int = LIMITS.size(
        "1MiB",
        "How many bytes of what it sent the broker keeps for a client that may come back (reconnectWindow) and has not "
        "confirmed them. A client that lacks more begins anew.",
        "Use more if messages are large and must not be delivered again after a network glitch.",
        minimum=0,
        maximum=1 << 30,
        special="0 = clients never come back to what they held",
        reload=True,
    )
    confirmation_window_limit_bytes: int = LIMITS.size(
        "64MiB",
        "Most bytes that the windows of all clients take together (confirmationWindowSize). Beyond it the client that "
        "is sent to loses the oldest of its own.",
        "Adapt it to the memory of the host if thousands of clients ask for reattachment.",
        minimum=0,
        maximum=1 << 40,
        reload=True,
    )
    consumer_buffer_size_bytes: int = LIMITS.size(
        "1MiB",
        "Bytes that may wait for the socket of a client that reads slowly. The broker then stops delivering to it. If "
        "as many bytes of answers to its commands wait as well, the broker stops reading from it until it reads.",
        "Use less if many slow consumers take too much memory.",
        minimum=4 << 10,
        maximum=1 << 30,
        reload=True,
    )

    heart_beat_send_s: float = STOMP.duration(
        "1s",
        "The shortest interval of heart-beats that the broker sends. A client that asks for a longer one gets that.",
        "Use more if thousands of clients ask for short intervals and the broker has little CPU time.",
        minimum=0,
        maximum=86_400_000,
        special="0 = none",
        reload=True,
    )
    heart_beat_receive_s: float = STOMP.duration(
        "1s",
        "The shortest interval at which the broker expects heart-beats. A client that offers a longer one is expected "
        "at that. The broker closes a connection that is silent for twice the interval.",
        "Use more if clients offer short intervals and are often busy for longer.",
        minimum=0,
        maximum=86_400_000,
        special="0 = none",
        reload=True,
    )
    stomp_default_persistent: bool = STOMP.boolean(
        True,
        "Whether a message without a `persistent` header is persistent.",
        "Use false for clients written for ActiveMQ, where it is not, if their messages may be lost: it is faster.",
        reload=True,
    )
    stomp_strict_destinations: bool = STOMP.boolean(
        True,
        "Whether a destination must begin with /queue/, /topic/ or another known prefix, and what looks like a slip is "
        "rejected.",
        "Clients written for ActiveMQ or Artemis use plain names such as `orders`: false makes a queue of whatever has "
        "no known prefix.",
        reload=True,
    )

    rebalance_cluster_clients: bool = OPENWIRE.boolean(
        False,
        "Let clients of OpenWire move to the broker that is first in the list that `updateClusterClients` tells them, "
        "the master, as soon as they hear of it.",
        "Set it if clients reach the master through another address first, such as a relay that should carry no "
        "messages.",
        reload=True,
    )

    audit_log: str = LOG.choice(
        "refusals",
        "The lines of the logger amq.audit: none, of refused logins and commands that permissions forbid, or also of "
        "each login (all).",
        "Use all if you must be able to tell who was connected when.",
        choices=("none", "refusals", "all"),
        reload=True,
    )
    log_level: str = LOG.choice(
        "info",
        "The least important lines to write.",
        "Use debug to look for a fault.",
        choices=("debug", "info", "warning", "error"),
        reload=True,
        elsewhere=("rootLogger",),
    )
    log_format: str = LOG.choice(
        "auto",
        "Lines for people or JSON for machines; auto means console on a terminal, else JSON.",
        "Use json if a collector reads the terminal's output, and console if people read a file.",
        choices=("console", "json", "auto"),
    )
