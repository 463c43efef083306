"""The options that all brokers of a group must share, and how two brokers differ in them.

A slave that takes over with other options serves the same queues by other rules. So each broker publishes its shared
options in `brokers/NAME.json` (`published`), and others compare (`differences`).

Invariant: `OWN` names every option that a broker may have for itself. An option that is not in `OWN` is shared, so a
new option is compared unless somebody decides otherwise. A key that only one side knows belongs to another version of
amq and is no difference, except for options of single destinations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from amq.config.destination_options import TABLE
from amq.config.schema import BY_KEY, OPTIONS, BrokerConfig

# Options of one host or process: who it is, where it listens, how it reads, writes and logs, what its host can give.
OWN = frozenset(
    (
        "name",
        "store",
        "locker",
        "transports",
        "advertisedTransports",
        "probeListen",
        "lockAcquireSleepInterval",
        "failIfLocked",
        "priority",
        "waitForActivation",
        "journalSegmentSize",
        "journalBatchSize",
        "journalReserve",
        "storeFreeFloor",
        "checkpointDistance",
        "slaveFollowInterval",
        "allowUnsafeStore",
        "memoryLimit",
        "maxConnections",
        "consumerBufferSize",
        "confirmationWindowLimit",
        "usersFile",
        "logLevel",
        "logFormat",
        "certificate",
        "certificateKey",
        "certificateKeyPasswordFile",
        "trust",
        "revokedCertificates",
        "certificateUsersFile",
        "maxHandshakes",
        "permissionsFile",
        "maxConnectionsPerAddress",
        "maxConnectionsPerUser",
        "failedLoginsPerMinute",
        "auditLog",
        "linkListen",
        "linkSecretFile",
    )
)
VALUE_CHARS_MAX = 60  # a longer value is published as its beginning and a checksum
PUBLISHED_BYTES_MAX = 8 << 10  # more is published as the digest alone
assert set(BY_KEY) >= OWN, OWN - set(BY_KEY)


def shared(config: BrokerConfig) -> dict[str, str]:
    """Each shared option with its value as a user writes it; options of single destinations by their own keys."""
    values = {made.key: made.format(config.get(made)) for made in OPTIONS if made.key not in OWN}
    for table in config.destinations:
        for made in OPTIONS:
            if made.attribute in table.values and made.key not in OWN:
                values[f'{TABLE}."{table.pattern}".{made.key}'] = made.format(table.values[made.attribute])
    return values


def published(config: BrokerConfig) -> dict[str, Any]:
    """The shared options as `brokers/NAME.json` holds them: `digest`, and `values` if they fit."""
    values = shared(config)
    digest = _checksum(json.dumps(values, sort_keys=True))
    short = {key: _short(value) for key, value in values.items()}
    fits = len(json.dumps(short)) <= PUBLISHED_BYTES_MAX
    return {"digest": digest, "values": short if fits else {}}


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Option → (my value, their value) of two `published` documents, whatever version wrote them.

    An option that is not set for a destination has the value "". Documents that differ without naming an option (too
    many options to publish) give one entry with the key "".
    """
    if mine.get("digest") == theirs.get("digest") or not isinstance(theirs.get("digest"), str):
        return {}
    own, other = (_texts(each.get("values")) for each in (mine, theirs))
    if not own or not other:
        return {"": (str(mine.get("digest")), str(theirs.get("digest")))}
    found = {}
    for key in [*own, *(key for key in other if key not in own)]:
        if (key in own and key in other) or key.startswith(f"{TABLE}."):
            values = own.get(key, ""), other.get(key, "")
            if values[0] != values[1]:
                found[key] = values
    return found


def describe(found: Mapping[str, tuple[str, str]], mine: str, theirs: str) -> str:
    """`differences` for people: `maximumRedeliveries is 6 on a and 3 on b; …`."""
    parts = []
    for key, (own, other) in found.items():
        if key:
            parts.append(f"{key} is {own or 'not set'} on {mine} and {other or 'not set'} on {theirs}")
        else:
            parts.append(f"{mine} and {theirs} have different options, too many to name")
    return "; ".join(parts)


def _texts(values: object) -> dict[str, str]:
    pairs = values.items() if isinstance(values, dict) else ()
    return {str(key): str(value) for key, value in pairs}


def _short(value: str) -> str:
    if len(value) <= VALUE_CHARS_MAX:
        return value
    return f"{value[:VALUE_CHARS_MAX]}… (checksum {_checksum(value)})"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
