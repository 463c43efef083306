"""Trust in the servers that the broker asks about logins: a context for TLS to them."""

from __future__ import annotations

import ssl

from amq.core.errors import ConfigError
from amq.doors.tls import new_context, words


def trusting(path: str) -> ssl.SSLContext:
    """It believes the CAs in that file, "" = those of this host, and checks names. Raises ConfigError."""
    context = new_context(ssl.PROTOCOL_TLS_CLIENT, "1.2")
    try:
        if path:
            context.load_verify_locations(path)
        else:
            context.load_default_certs()
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{path}: no PEM file of trusted CAs: {words(error)}", code="TRUST_INVALID") from error
    return context
