"""The broker's own certificate while it runs: read when its files change, and told about before it expires."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import structlog

from amq.config import addresses
from amq.config.node_options import NodeOptions
from amq.config.transport_url import parse_transport_url
from amq.security import CertificateUsers, Credentials, LoginGate

KEYS: Final = frozenset(
    (
        "certificate",
        "certificateKey",
        "certificateKeyPasswordFile",
        "trust",
        "revokedCertificates",
        "clientCertificate",
        "tlsMinimumVersion",
        "certificateUser",
        "certificateUsersFile",
    )
)
LOOK_S: Final = 86_400.0
_log = structlog.get_logger("amq.process")


class OwnCertificate:
    """Reads the files of `config`. Raises ConfigError if they cannot be used."""

    def __init__(self, config: NodeOptions, gate: LoginGate) -> None:
        self._gate = gate
        self.credentials = Credentials(config)
        gate.use_certificates(CertificateUsers.read(config.certificate_user, config.certificate_users_file))

    def warnings(self, config: NodeOptions) -> tuple[str, ...]:
        """Sentences about files that can be used, and were probably not meant so."""
        shown = self.credentials.shown
        if shown is None:
            return ()
        told = map(parse_transport_url, addresses.of_broker(config, (), socket.gethostname()))
        unnamed = [host for host in dict.fromkeys(url.host for url in told if url.tls) if not shown.covers(host)]
        if not unnamed:
            return self.credentials.warnings
        sentence = (
            f"the certificate {shown.subject} does not name {', '.join(unnamed)}, where clients are told to find this "
            "broker: they refuse it there; set advertisedTransports to the names that it has "
            f"({', '.join(shown.names)})"
        )
        return (*self.credentials.warnings, sentence)

    @staticmethod
    def paths(config: NodeOptions) -> tuple[str, ...]:
        """The files that it is read from."""
        named = (
            config.certificate,
            config.certificate_key,
            config.certificate_key_password_file,
            config.trust,
            config.revoked_certificates,
            config.certificate_users_file,
        )
        return tuple(path for path in named if path)

    def read(self, config: NodeOptions, current: Callable[[], bool]) -> None:
        """Use the files as they are now. Raises ConfigError if they cannot be used: then nothing changes."""
        users = CertificateUsers.read(config.certificate_user, config.certificate_users_file)
        if not self.credentials.reload(config, current):
            return
        self._gate.use_certificates(users)
        shown = self.credentials.shown
        if shown is not None:
            _log.info(
                "certificates read: new connections get them",
                subject=shown.subject,
                valid_until=shown.until,
                generation=self.credentials.generation,
            )
        for warning in self.warnings(config):
            _log.warning(warning)
        if sentence := self.credentials.expiry_warning():
            _log.warning(sentence)

    def watch_expiry(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say it now and each day, if the certificate ends soon."""
        if sentence := self.credentials.expiry_warning():
            _log.warning(sentence)
        loop.call_later(LOOK_S, self.watch_expiry, loop)
