"""Checks over several values: defaults that follow other options, options that contradict each other, and settings that
are probably not meant."""

from __future__ import annotations

import dataclasses
from typing import Any

from amq.config.option import DEFAULT_SOURCE
from amq.config.patterns import parse_pattern
from amq.config.schema import BY_KEY, BrokerConfig
from amq.config.transport_url import host_and_port, parse_transport_url
from amq.core.destination import ANY_REST, ANY_WORD
from amq.core.units import format_size
from amq.doors.tls import is_protected
from amq.store.name import COORDINATORS, is_directory

# (the smaller one, the larger one, why)
_AT_MOST = (
    ("journalBatchSize", "journalSegmentSize", "a full batch would not fit into a segment"),
    ("journalReserve", "storeFreeFloor", "sends would go on when no room is left for acknowledgements"),
    ("maxFrameSize", "memoryLimit", "the largest message would wait for ever for memory"),
    ("maxFrameSize", "maxTransactionSize", "the largest message could not be sent in a transaction"),
    ("maxTransactionSize", "memoryLimit", "one transaction could ask for more memory than there is"),
    ("maxHeaderSize", "maxHeaderBlockSize", "the longest header would not fit into the header block"),
)
STORE_LIMIT_SEGMENTS_MIN = 8
TOKEN_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TOKEN_CURES = {
    "tokenAudience": "tokens for any other service would be accepted; set it to the name of this broker at the issuer",
    "tokenUser": "no user would have a name; set it to the claim with the user's name",
}
_NEVER_RAISED = "memoryLimit"  # a default protects the host: only a person may ask for more of its memory


def adapted(config: BrokerConfig) -> BrokerConfig:
    """`config` in which defaults give way to values that somebody set: one option alone is enough.

    A default that is too large for another option is lowered, one that is too small is raised (never `memoryLimit`).
    Values that were set are never changed; where two of them contradict each other `contradictions` says so.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def value(key: str) -> Any:
        attribute = BY_KEY[key].attribute
        return values.get(attribute, getattr(config, attribute))

    def is_default(key: str) -> bool:
        return BY_KEY[key].attribute not in config.sources

    def follow(key: str, wanted: int, cause: str) -> None:
        made = BY_KEY[key]
        least, most = made.minimum or 0, made.maximum or wanted
        if is_default(key) and least <= wanted <= most:
            values[made.attribute] = wanted
            sources[made.attribute] = f"{DEFAULT_SOURCE}, adapted to {cause}"

    if not is_default("storeLimit") and value("storeLimit"):
        size = value("storeLimit") // STORE_LIMIT_SEGMENTS_MIN
        if size < value("journalSegmentSize"):
            follow("journalSegmentSize", size, "storeLimit")
    pairs = [(small, large) for small, large, _why in _AT_MOST]
    for small, large in [*reversed(pairs), *pairs]:  # what follows memoryLimit first, then what follows that
        if value(small) > value(large):
            follow(small, value(large), large)
    for small, large in pairs:
        if value(small) > value(large) and large != _NEVER_RAISED:
            follow(large, value(small), small)
    return dataclasses.replace(config, **values, sources={**config.sources, **sources}) if values else config


def contradictions(config: BrokerConfig) -> list[str]:
    """One sentence for each pair of options that cannot both be meant, with both values, their sources and the cure."""
    found = []
    for small, large, why in _AT_MOST:
        if config.get(BY_KEY[small]) > config.get(BY_KEY[large]):  # type: ignore[operator]
            found.append(
                f"{_told(config, small)} is larger than {_told(config, large)}: {why}; "
                "lower the first or raise the second"
            )
    least = STORE_LIMIT_SEGMENTS_MIN * config.journal_segment_size_bytes
    if 0 < config.store_limit_bytes < least:
        found.append(
            f"{_told(config, 'storeLimit')} is less than {STORE_LIMIT_SEGMENTS_MIN} times "
            f"{_told(config, 'journalSegmentSize')}: half of that is kept free for acknowledgements and for moving "
            f"messages together; give at least {format_size(least)}, or make the journal's files smaller"
        )
    found += _bad_names(config)
    if config.anonymous == "no" and not has_logins(config):
        found.append(
            f"{_told(config, 'anonymous')} without usersFile: no client could log in; set usersFile to a file made "
            "with `amq user add NAME --users FILE`, or allow anonymous = loopback"
        )
    if config.probe_listen:
        try:
            host_and_port(config.probe_listen)
        except ValueError as error:
            found.append(f"{_told(config, 'probeListen')}: {error}")
    found += _lock_contradictions(config)
    found += _link_contradictions(config)
    return found + _tls_contradictions(config) + _token_contradictions(config) + _ldap_contradictions(config)


def has_logins(config: BrokerConfig) -> bool:
    """Is there any way to log in?"""
    by_certificate = config.certificate_user != "none" or config.certificate_users_file
    return bool(config.users_file or config.token_issuer or config.ldap_urls or by_certificate)


def _lock_contradictions(config: BrokerConfig) -> list[str]:
    if not config.locker:
        return []
    found = []
    if not config.locker.startswith(("postgresql://", "postgres://", *COORDINATORS)):
        kinds = "a database or coordinator: postgresql://HOST/DATABASE, etcd://HOST,HOST, zookeeper://… or file:///DIR"
        found.append(f"locker is {config.locker!r}: it must be the URL of {kinds}")
    if not is_directory(config.store):
        found.append("locker is set, but the store is no directory and has its own lock: leave locker out")
    return found


def _token_contradictions(config: BrokerConfig) -> list[str]:
    found = []
    if not config.token_issuer:
        for key in ("tokenAudience", "tokenKeys", "tokenTrust", "tokenRoles"):
            if config.get(BY_KEY[key]):
                found.append(f"{_told(config, key)} has no effect without tokenIssuer: set that too, or leave this out")
        return found
    for key in ("tokenAudience", "tokenUser"):
        if not config.get(BY_KEY[key]):
            found.append(f"{_told(config, 'tokenIssuer')} without {key}: {_TOKEN_CURES[key]}")
    for key in ("tokenIssuer", "tokenKeys"):
        if (url := str(config.get(BY_KEY[key]))) and not is_protected(url):
            found.append(f"{_told(config, key)} must begin with https:// (on this host http:// will do)")
    names = config.token_algorithms.replace(",", " ").split()
    if not names or not set(names) <= set(TOKEN_ALGORITHMS):
        found.append(
            f"{_told(config, 'tokenAlgorithms')} must be one or several of {', '.join(TOKEN_ALGORITHMS)}; those that "
            "need a shared secret are not safe here"
        )
    return found


def _link_contradictions(config: BrokerConfig) -> list[str]:
    if not config.link_listen:
        return []
    found = []
    try:
        url = parse_transport_url(config.link_listen)
    except ValueError as error:
        return [f"{_told(config, 'linkListen')} {error}"]
    if url.scheme not in ("tcp", "ssl"):
        found.append(f"{_told(config, 'linkListen')} is neither tcp://HOST:PORT nor ssl://HOST:PORT")
    if not config.link_secret_file:
        found.append(f"{_told(config, 'linkListen')} without linkSecretFile: anybody could act as a gateway; set it")
    if url.tls and not config.certificate:
        found.append(f"{_told(config, 'linkListen')} needs a certificate: set certificate")
    protected = all(each.tls or each.loopback for each in map(parse_transport_url, config.transports))
    if protected and not (url.tls or url.loopback):
        found.append(
            f"{_told(config, 'linkListen')} can be reached from other hosts without TLS, and no transport can; write "
            "ssl://HOST:PORT, or listen on 127.0.0.1"
        )
    return found


def _tls_contradictions(config: BrokerConfig) -> list[str]:
    found = []
    secure = [url for url in config.transports if parse_transport_url(url).tls]
    if secure and not config.certificate:
        found.append(
            f"{secure[0]} needs a certificate: set certificate, and certificateKey if the key is in another file"
        )
    if config.client_certificate != "none" and not config.trust:
        found.append(
            f"{_told(config, 'clientCertificate')} without trust: no client certificate could be checked; set trust to "
            "a PEM file with the CAs of the clients"
        )
    asks = config.client_certificate != "none"
    for key, is_set in (
        ("certificateUser", config.certificate_user != "none"),
        ("certificateUsersFile", config.certificate_users_file),
        ("revokedCertificates", config.revoked_certificates),
    ):
        if is_set and not asks:
            found.append(
                f"{_told(config, key)} has no effect, because clients are not asked for a certificate; set "
                "clientCertificate to want or need"
            )
    return found


def _ldap_contradictions(config: BrokerConfig) -> list[str]:
    found = []
    if not config.ldap_urls:
        for key in ("ldapTrust", "ldapUserBase", "ldapBindUser", "ldapBindPasswordFile", "ldapGroupBase"):
            if config.get(BY_KEY[key]):
                found.append(f"{_told(config, key)} has no effect without ldapUrls: set that too, or leave this out")
        return found
    for url in config.ldap_urls.replace(",", " ").split():
        scheme, _, rest = url.partition("://")
        if scheme not in ("ldap", "ldaps") or not rest:
            found.append(f"{_told(config, 'ldapUrls')} must name servers as ldaps://host or ldap://host")
        elif scheme == "ldap" and not config.ldap_start_tls and not is_protected(f"http://{rest}"):
            found.append(
                f"{_told(config, 'ldapUrls')} with ldapStartTls = false would send passwords in the clear: use "
                "ldaps://, or ldapStartTls"
            )
    for key in ("ldapUserBase", "ldapUserAttribute", "ldapGroupMember"):
        if not config.get(BY_KEY[key]):
            found.append(f"{_told(config, 'ldapUrls')} without {key}: no user could be found; set it")
    if bool(config.ldap_bind_user) != bool(config.ldap_bind_password_file):
        found.append("ldapBindUser and ldapBindPasswordFile belong together: set both, or none")
    return found


def _bad_names(config: BrokerConfig) -> list[str]:
    """Of destinations, where an option is a name."""
    found = []
    queues = [("expiryQueue", config.expiry_queue)]
    for table in config.destinations:
        name = str(table.values.get("expiry_queue", ""))
        queues.append((f'[destinations."{table.pattern}"] expiryQueue', name))
    names = [("virtualTopics", config.virtual_topics), *queues]
    names.append(("virtualTopicConsumers", config.virtual_topic_consumers.removesuffix(".")))
    for key, name in names:
        try:
            words = parse_pattern(name) if name else ()
        except ValueError as error:
            found.append(f'{key} = "{name}" {error}')
            continue
        if key.endswith("expiryQueue") and ("," in name or {ANY_WORD, ANY_REST} & set(words)):
            found.append(f'{key} = "{name}" names no single queue: give the name of one, without *, > and commas')
    if not config.virtual_topic_consumers.removesuffix(".") or ">" in config.virtual_topic_consumers:
        found.append('virtualTopicConsumers must be words that may be "*", such as "Consumer.*.", without ">"')
    return found


def doubts(config: BrokerConfig) -> list[str]:
    """One sentence for each setting that is allowed but probably not what the operator wants."""
    found = []
    remote = [url for url in config.transports if not parse_transport_url(url).loopback]
    if remote and config.anonymous == "loopback" and not has_logins(config):
        found.append(
            f"{remote[0]} can be reached from other hosts, but no client can log in from there: anonymous = loopback "
            "and no usersFile; add users with `amq user add NAME --users FILE` and set usersFile, or set anonymous = "
            "yes on a trusted network"
        )
    if remote and config.anonymous == "yes" and config.users_file:
        found.append(
            f"{_told(config, 'anonymous')} lets clients in without a login, so usersFile protects nothing; set "
            "anonymous = loopback or no"
        )
    if config.certificate and not any(parse_transport_url(url).tls for url in config.transports):
        found.append(
            f"{_told(config, 'certificate')} is not used: no transport speaks TLS; add for example "
            "stomp+ssl://0.0.0.0:61614"
        )
    return found


def _told(config: BrokerConfig, key: str) -> str:
    made = BY_KEY[key]
    return f"{key} = {made.format(config.get(made))} ({config.sources.get(made.attribute, DEFAULT_SOURCE)})"
