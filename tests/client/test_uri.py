"""Broker URLs: what is read from them, and what is refused with which cure."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.client.errors import UriError
from amq.client.options import (
    IGNORED,
    IGNORED_IF_TRUE,
    REFUSED,
    FailoverOptions,
    TransportOptions,
    declared,
    reference,
    tables,
)
from amq.client.uri import URL_CHARACTERS_MAX, member, parse


def test_plain_uri_has_no_failover() -> None:
    url = parse("stomp://broker")
    assert [str(uri) for uri in url.uris] == ["stomp://broker:61613"]
    assert not url.failover
    assert url.options.max_reconnect_attempts == 0


@pytest.mark.parametrize(
    "text",
    [
        "failover:(stomp://a:1,stomp://b:2)?randomize=false",
        "failover://(stomp://a:1,stomp://b:2)?randomize=false",
        "failover:stomp://a:1,stomp://b:2?randomize=false",
        " FAILOVER:( stomp://a:1 ,\n STOMP://b:2/ , stomp://a:1 )?randomize=FALSE ",
    ],
)
def test_spellings_of_failover(text: str) -> None:
    url = parse(text)
    assert [uri.address for uri in url.uris] == [("a", 1), ("b", 2)]
    assert url.failover
    assert not url.options.randomize
    assert url.options.max_reconnect_attempts == -1
    assert str(url) == "failover:(stomp://a:1,stomp://b:2)"


def test_a_window_that_nobody_uses_is_told() -> None:
    size = "failover:(stomp://a)?confirmationWindowSize=1000000"
    assert "reconnectWindow" in parse(size).warnings[0]
    assert not parse(f"{size}&reconnectWindow=1000").warnings
    assert not parse("failover:(stomp://a)?confirmationWindowSize=-1").warnings


def test_all_failover_options_with_their_types() -> None:
    text = "&".join(
        [
            "initialReconnectDelay=1",
            "maxReconnectDelay=2",
            "useExponentialBackOff=false",
            "reconnectDelayExponent=1.5",
            "maxReconnectAttempts=3",
            "startupMaxReconnectAttempts=4",
            "warnAfterReconnectAttempts=5",
            "randomize=false",
            "timeout=6",
            "reconnectWindow=7",
            "confirmationWindowSize=8",
            "priorityBackup=true",
            "priorityURIs=stomp://b:2,stomp://a:1",
            "updateURIsSupported=true",
            "updateURIsURL=https://x/y",
            "knownBrokersFile=f",
            "redirect=true",
        ]
    )
    url = parse(f"failover:(stomp://a:1,stomp://b:2,stomp://c:3)?{text}")
    priority = "stomp://b:2,stomp://a:1"
    assert url.options == FailoverOptions(
        1, 2, False, 1.5, 3, 4, 5, False, 6, 7, 8, True, priority, True, "https://x/y", "f", True
    )
    assert url.priority == {("a", 1), ("b", 2)}
    assert len(text.split("&")) == len(declared(FailoverOptions)), "an option is missing in this test"


def test_nested_options_yield_to_those_of_the_uri() -> None:
    url = parse("failover:(stomp://a:1?heartBeat=7,stomp://b:2)?nested.heartBeat=9&nested.connectTimeout=11")
    assert [uri.options.heart_beat_ms for uri in url.uris] == [7, 9]
    assert [uri.options.connect_timeout_ms for uri in url.uris] == [11, 11]


def test_tls_options_stand_at_a_broker_or_at_the_list() -> None:
    url = parse("failover:(stomp+ssl://a,STOMP+SSL://b:7?trust=b.pem)?trust=ca.pem&certificate=me.pem&timeout=5")
    assert [(uri.scheme, uri.address, uri.tls) for uri in url.uris] == [
        ("stomp+ssl", ("a", 61614), True),
        ("stomp+ssl", ("b", 7), True),
    ]
    assert [uri.options.trust for uri in url.uris] == ["ca.pem", "b.pem"]
    assert {uri.options.certificate for uri in url.uris} == {"me.pem"}
    assert str(url) == "failover:(stomp+ssl://a:61614,stomp+ssl://b:7)"


def test_a_learned_broker_gets_the_tls_options_that_all_have_in_common() -> None:
    url = parse("failover:(stomp+ssl://a?trust=ca.pem&certificate=1.pem,stomp+ssl://b?trust=ca.pem&certificate=2.pem)")
    options = member("stomp+ssl://c:9", url, bare=True).options
    assert (options.trust, options.certificate) == ("ca.pem", "")
    assert not member("stomp://c:9", url, bare=True).tls


def test_alias_of_artemis() -> None:
    assert parse("failover:(stomp://a)?initialConnectAttempts=3").options.startup_max_reconnect_attempts == 3
    with pytest.raises(UriError, match="given twice"):
        parse("failover:(stomp://a)?initialConnectAttempts=3&startupMaxReconnectAttempts=4")


def test_priority_without_list_is_the_first() -> None:
    assert parse("failover:(stomp://a:1,stomp://b:2)?priorityBackup=true").priority == {("a", 1)}
    assert parse("failover:(stomp://a:1,stomp://b:2)?priorityURIs=stomp://b:2").priority == frozenset()


@pytest.mark.parametrize(
    ("text", "host", "port", "login", "passcode"),
    [
        ("stomp://[::1]:5", "::1", 5, "", ""),
        ("stomp://[fe80::1%25eth0]", "fe80::1%eth0", 61613, "", ""),
        ("stomp://us%40er:p%3Aa%2Fss@h:5", "h", 5, "us@er", "p:a/ss"),
        ("stomp://user@h", "h", 61613, "user", ""),
        ("stomp://127.0.0.1:65535/", "127.0.0.1", 65535, "", ""),
    ],
)
def test_parts_of_a_uri(text: str, host: str, port: int, login: str, passcode: str) -> None:
    uri = parse(text).uris[0]
    assert (uri.host, uri.port, uri.login, uri.passcode) == (host, port, login, passcode)
    again = parse(str(uri).replace("%eth0", "%25eth0"))
    assert again.uris[0].address == uri.address
    assert not passcode or (passcode not in repr(uri) and passcode not in str(uri))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no scheme"),
        ("localhost", "no scheme"),
        ("http://a", "write stomp://HOST:PORT"),
        ("tcp://a:61616", "OpenWire"),
        ("ssl://a", "write stomp+ssl://HOST:61614"),
        ("stomp://a?trust=ca.pem", "has no effect without TLS"),
        ("stomp+ssl://a?tlsMinimumVersion=1.1", "write 1.2 or 1.3"),
        ("failover:(stomp+ssl://a)?trust=x&nested.trust=y", "given twice"),
        ("stomp://", "write stomp://HOST:PORT"),
        ("stomp://a:0", "port 0"),
        ("stomp://a:65536", "port 65536"),
        ("stomp://a:b", "HOST:PORT"),
        ("stomp://::1:5", "brackets"),
        ("stomp://a b", "HOST:PORT"),
        ("failover:", "empty"),
        ("failover:()", "empty"),
        ("failover:(stomp://a,,stomp://b)", "empty"),
        ("failover:(stomp://a", "closing parenthesis is missing"),
        ("failover:(stomp://a)randomize=false", "only ?options may follow"),
        ("failover:(failover:(stomp://a))", "cannot be inside"),
        ("failover:(stomp://a)?randomise=false", "did you mean randomize"),
        ("failover:(stomp://a)?zzz=false", "known are initialReconnectDelay"),
        ("failover:(stomp://a)?randomize", "write randomize=VALUE"),
        ("failover:(stomp://a)?randomize=maybe", "true or false"),
        ("failover:(stomp://a)?randomize=true&randomize=true", "given twice"),
        ("failover:(stomp://a)?timeout=1s", "whole number"),
        ("failover:(stomp://a)?timeout=-2", "from -1"),
        ("failover:(stomp://a)?maxReconnectDelay=0", "from 1"),
        ("failover:(stomp://a)?timeout=٣", "whole number"),
        ("failover:(stomp://a)?reconnectDelayExponent=0.5", "from 1"),
        ("failover:(stomp://a)?heartBeat=5", "nested.heartBeat"),
        ("failover:(stomp://a?randomize=true)", "belongs to failover"),
        ("failover:(stomp://a)?nested.heartbeat=5", "did you mean heartBeat"),
        ("failover:(stomp://a)?priorityBackup=true&priorityURIs=stomp://z", "not in the list"),
        ("failover:(stomp://a?priorityURIs=1)", "belongs to failover"),
        ("stomp://a?maxReconnectAttempts=1", "belongs to failover"),
        ("stomp://" + "a" * URL_CHARACTERS_MAX, "characters"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(UriError, match=re.escape(says)):
        parse(text)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_options_without_meaning_here_are_explained(name: str) -> None:
    with pytest.raises(UriError, match=re.escape(REFUSED[name])):
        parse(f"failover:(stomp://a)?{name}=1")


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_harmless_words_of_other_clients_are_accepted_with_a_warning(name: str) -> None:
    url = parse(f"failover:(stomp://a)?{name}=TRUE&randomize=false")
    assert url == parse("failover:(stomp://a)?randomize=false")
    (warning,) = url.warnings
    assert f"option {name} of the broker URL is ignored: {IGNORED[name]}" in warning
    if name in IGNORED_IF_TRUE:
        with pytest.raises(UriError, match="maxReconnectAttempts=0"):
            parse(f"failover:(stomp://a)?{name}=false")


def test_names_of_artemis_set_our_options() -> None:
    names = "reconnectAttempts=200&retryInterval=7&maxRetryInterval=90&retryIntervalMultiplier=3.0&ha=true"
    options = parse(f"failover:(stomp://a)?{names}").options
    found = (options.max_reconnect_attempts, options.initial_reconnect_delay_ms, options.max_reconnect_delay_ms)
    assert (*found, options.reconnect_delay_exponent) == (200, 7, 90, 3.0)


@pytest.mark.parametrize(
    ("query", "warned"),
    [
        ("maxReconnectAttempts=20", True),
        ("maxReconnectAttempts=20&maxReconnectDelay=2000", False),
        ("maxReconnectAttempts=100", False),
        ("maxReconnectAttempts=1000000000&maxReconnectDelay=1", False),
        ("maxReconnectAttempts=20&useExponentialBackOff=false", True),
        ("maxReconnectAttempts=0", False),
        ("", False),
    ],
)
def test_giving_up_before_a_takeover_can_end_is_warned_of(query: str, warned: bool) -> None:
    warnings = parse(f"failover:(stomp://a)?{query}").warnings
    assert len(warnings) == warned
    assert not warned or "gives up after about" in warnings[0]


def test_largest_message_is_an_option() -> None:
    assert parse("stomp://a").uris[0].options.max_frame_size == 100 << 20
    assert parse("failover:(stomp://a)?nested.maxFrameSize=4096").uris[0].options.max_frame_size == 4096
    with pytest.raises(UriError, match="from 1024"):
        parse("stomp://a?maxFrameSize=0")


def test_an_error_never_shows_a_passcode() -> None:
    for text in ("tcp://me:hush@a:1", "stomp://me:hush@a:99999", "failover:(stomp://me:hush@a:1"):
        with pytest.raises(UriError) as refused:
            parse(text)
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("artemis", "same"),
    [
        ("(stomp://a:1,stomp://b:2)", "failover:(stomp://a:1,stomp://b:2)"),
        (
            "(stomp://a:1,stomp://b:2)?ha=true&reconnectAttempts=5&retryInterval=7&heartBeat=9&nested.keepAlive=false",
            "failover:(stomp://a:1,stomp://b:2)?maxReconnectAttempts=5&initialReconnectDelay=7&nested.heartBeat=9"
            "&nested.keepAlive=false",
        ),
        ("stomp://a:1?ha=true", "failover:(stomp://a:1)"),
        (
            "stomp://me:x%3F@a:1?heartBeat=9&ha=true&initialConnectAttempts=3&retryIntervalMultiplier=3.0",
            "failover:(stomp://me:x%3F@a:1)?nested.heartBeat=9&startupMaxReconnectAttempts=3&reconnectDelayExponent=3.0",
        ),
    ],
)
def test_urls_of_artemis(artemis: str, same: str) -> None:
    found, expected = parse(artemis), parse(same)
    assert (found.uris, found.options, found.failover) == (expected.uris, expected.options, True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(stomp://a:1", "closing parenthesis is missing"),
        ("(stomp://a:1)x", "only ?options may follow"),
        ("stomp://a:1?ha=false", "only true"),
        ("stomp://a:1?reconnectAttempts=3", "or add ha=true"),
        ("failover:stomp://a:1?updateURIsURL=ftp://x", "write a path, file://, http:// or https://"),
        ("failover:stomp://a:1?knownBrokersFile=file:///x", "option knownBrokersFile='file:///x': write a path"),
        ("failover:stomp://a:1?updateURIsSupported=false&updateURIsURL=x", "leave out one of the two"),
        ("failover:stomp://a:1?updateURIsSupported=false&knownBrokersFile=x", "leave out one of the two"),
        ("failover:(stomp://a:1?heartBeat=1)?nested.heartBeat=x", "option heartBeat='x'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, why: str) -> None:
    with pytest.raises(UriError, match=re.escape(why)):
        parse(text)


PIECES = st.sampled_from(
    [
        "failover:",
        ")",
        "stomp://",
        "a",
        ":",
        "1",
        ",",
        "?",
        "&",
        "=",
        "randomize",
        "timeout",
        "nested.",
        "%",
        "[",
        "]",
        "@",
        "/",
        "::1",
        "true",
        "heartBeat",
        "(",
        " ",
        "\0",
        "ü",
        "priorityBackup=true",
        "priorityURIs=",
        "ha=true",
        "updateURIsURL=",
    ]
)


@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join)))
def test_parsed_or_refused_and_nothing_else(text: str) -> None:
    try:
        url = parse(text)
    except UriError:
        return
    assert url.uris
    assert all(0 < uri.port < 65536 and uri.host for uri in url.uris)


@pytest.mark.parametrize("options", [FailoverOptions, TransportOptions])
def test_the_tables_have_every_option(options: type) -> None:
    assert "\n".join(reference(options)) in "\n".join(tables())


def test_the_tables_explain_what_is_refused_or_ignored() -> None:
    text = "\n".join(tables())
    assert [name for name, why in REFUSED.items() if f"| `{name}` | {why} |" not in text] == []
    shown = {f"{name}{'=true' * (name in IGNORED_IF_TRUE)}": why for name, why in IGNORED.items()}
    assert [name for name, why in shown.items() if f"| `{name}` | {why} |" not in text] == []
