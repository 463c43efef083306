"""Transport URLs: what can be listened on, what cannot and why, and which addresses only this host reaches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.config.addresses import stated
from amq.config.transport_url import TransportUrl, is_loopback, parse_address, parse_transport_url


@pytest.mark.parametrize(
    ("text", "url", "written"),
    [
        ("stomp://127.0.0.1:61613", TransportUrl("stomp", "127.0.0.1", 61613), "stomp://127.0.0.1:61613"),
        ("stomp://0.0.0.0", TransportUrl("stomp", "0.0.0.0", 61613), "stomp://0.0.0.0:61613"),
        ("STOMP://Broker-1.example:1/", TransportUrl("stomp", "broker-1.example", 1), "stomp://broker-1.example:1"),
        ("stomp://[::1]:0", TransportUrl("stomp", "::1", 0), "stomp://[::1]:0"),
    ],
)
def test_good_urls(text: str, url: TransportUrl, written: str) -> None:
    assert parse_transport_url(text) == url
    assert str(url) == written
    assert parse_transport_url(written) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown scheme"),
        ("amqp://h:5672", 'scheme "amqp"'),
        ("127.0.0.1:61613", "unknown scheme"),
        ("stomp://", "no host"),
        ("stomp://:61613", "no host"),
        ("stomp://h:70000", "not a URL"),
        ("stomp://h:x", "not a URL"),
        ("stomp://[::1", "not a URL"),
        ("stomp://u:p@h:1", "usersFile"),
        ("stomp://h:1/path", "more than"),
        ("stomp://h:1#f", "more than"),
        ("stomp://h:1?a=b", 'option "a"'),
        ("stomp://a b:1", "neither an IP address"),
        ("stomp://-h:1", "neither"),
        ("stomp://*:1", "neither"),
    ],
)
def test_bad_urls_say_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_transport_url(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@given(st.text(max_size=60) | st.text(max_size=60).map("stomp://".__add__))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    try:
        url = parse_transport_url(text)
    except ValueError:
        return
    assert parse_transport_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("stomp://broker1:0", "port 0"),
        ("stomp://0.0.0.0:61613", "means any address"),
        ("stomp://[::]:61613", "means any address"),
        ("stomp://:61613", "names no host"),
        ("http://broker1", "unknown scheme"),
        (f"stomp://{'a' * 60}.{'b' * 60}.{'c' * 60}.{'d' * 60}", "longer than"),
    ],
)
def test_an_address_is_one_that_clients_can_connect_to(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_address(text)


@given(st.text(max_size=60).map("stomp://".__add__))
def test_an_address_is_a_transport_url_too(text: str) -> None:
    try:
        url = parse_address(text)
    except ValueError:
        return
    assert url.port
    assert parse_transport_url(text) == url


def test_addresses_of_transports() -> None:
    transports = ["stomp://0.0.0.0:1", "stomp://127.0.0.1:0", "mqtt://later:2", "stomp://[::]:3", "stomp://h:4"]
    assert list(stated(transports, "here")) == ["stomp://here:1", "stomp://here:3", "stomp://h:4"]
