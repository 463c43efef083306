"""The broker's own certificate while it runs: read when its files change, and told about before it expires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from amq.config import BrokerConfig
from amq.security import CertificateUsers, Credentials, LoginGate

KEYS: Final = frozenset((
    "certificate", "certificateKey", "certificateKeyPasswordFile", "trust", "revokedCertificates", "clientCertificate",
    "tlsMinimumVersion", "certificateUser", "certificateUsersFile",
))  # fmt: skip
LOOK_S: Final = 86_400.0
_log = structlog.get_logger("amq.process")


class OwnCertificate:
    """Reads the files of `config`. Raises ConfigError if they cannot be used."""

    def __init__(self, config: BrokerConfig, gate: LoginGate) -> None:
        self._gate = gate
        self.credentials = Credentials(config)
        gate.use_certificates(CertificateUsers.read(config.certificate_user, config.certificate_users_file))

    @staticmethod
    def paths(config: BrokerConfig) -> tuple[str, ...]:
        """The files that it is read from."""
        named = (
            config.certificate, config.certificate_key, config.certificate_key_password_file, config.trust,
            config.revoked_certificates, config.certificate_users_file,
        )  # fmt: skip
        return tuple(path for path in named if path)

    def read(self, config: BrokerConfig, current: Callable[[], bool]) -> None:
        """Use the files as they are now. Raises ConfigError if they cannot be used: then nothing changes."""
        users = CertificateUsers.read(config.certificate_user, config.certificate_users_file)
        if not self.credentials.reload(config, current):
            return
        self._gate.use_certificates(users)
        shown = self.credentials.shown
        if shown is not None:
            _log.info(
                "certificates read: new connections get them", subject=shown.subject, valid_until=shown.until,
                generation=self.credentials.generation,
            )  # fmt: skip
        for warning in self.credentials.warnings:
            _log.warning(warning)
        if sentence := self.credentials.expiry_warning():
            _log.warning(sentence)

    def watch_expiry(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say it now and each day, if the certificate ends soon."""
        if sentence := self.credentials.expiry_warning():
            _log.warning(sentence)
        loop.call_later(LOOK_S, self.watch_expiry, loop)
