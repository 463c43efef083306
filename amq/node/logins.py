"""The ways to log in that the configuration adds to passwords and certificates, while the broker runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from amq.config.node_options import NodeOptions
from amq.core.errors import ConfigError
from amq.security import LoginGate, Way

KEYS: Final = frozenset(
    (
        "tokenIssuer",
        "tokenAudience",
        "tokenAlgorithms",
        "tokenKeys",
        "tokenTrust",
        "tokenUser",
        "tokenRoles",
        "ldapUrls",
        "ldapStartTls",
        "ldapTrust",
        "ldapUserBase",
        "ldapUserAttribute",
        "ldapBindUser",
        "ldapBindPasswordFile",
        "ldapGroupBase",
        "ldapGroupMember",
        "ldapTimeout",
    )
)
_log = structlog.get_logger("amq.process")


class OwnLogins:
    """Makes the ways of `config`. Raises ConfigError where one cannot be used."""

    def __init__(self, config: NodeOptions, gate: LoginGate) -> None:
        self._gate = gate
        gate.use(_ways(config, gate))

    @staticmethod
    def paths(config: NodeOptions) -> tuple[str, ...]:
        """The files that they read."""
        return tuple(path for path in (config.token_trust, config.ldap_trust, config.ldap_bind_password_file) if path)

    def read(self, config: NodeOptions, current: Callable[[], bool]) -> None:
        """Make them anew. Raises ConfigError where one cannot be used: then nothing changes."""
        ways = _ways(config, self._gate)
        if current():
            self._gate.use(ways)
            _log.info("logins read", ways=[way.__class__.__name__.lower() for way in ways])


def _ways(config: NodeOptions, gate: LoginGate) -> list[Way]:
    ways: list[Way] = []
    if config.token_issuer:
        try:
            from amq.security.tokens import Tokens
        except ModuleNotFoundError as error:
            raise _missing("tokenIssuer", "jwt", error) from error
        ways.append(Tokens(config))
    if config.ldap_urls:
        try:
            from amq.security.directory import LdapDirectory
        except ModuleNotFoundError as error:
            raise _missing("ldapUrls", "ldap", error) from error
        ways.append(LdapDirectory(config, gate.is_local))
    return ways


def _missing(key: str, extra: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"{key} needs a package that is not installed ({error.name}): pip install 'amq[{extra}]'", code="EXTRA_MISSING"
    )
