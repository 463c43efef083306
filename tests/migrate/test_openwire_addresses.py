"""Broker URLs of OpenWire: what is meant, and what is refused without telling a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.client.errors import UriError
from amq_migrate.openwire.addresses import login_of, parse


@pytest.mark.parametrize(
    ("url", "members", "failover"),
    [
        ("tcp://a", (("a", 61616),), False),
        ("tcp://a:1?wireFormat.maxInactivityDuration=0", (("a", 1),), False),
        ("failover:(tcp://a:1,tcp://b:2)?randomize=false", (("a", 1), ("b", 2)), True),
        ("failover:tcp://a:1,nio://b:2", (("a", 1), ("b", 2)), True),
        ("failover://(tcp://a:1?x=y,auto://[::1]:2)", (("a", 1), ("::1", 2)), True),
        ("failover:(tcp://a:1,tcp://b:2,tcp://a:1)", (("a", 1), ("b", 2)), True),
    ],
)
def test_urls(url: str, members: tuple[tuple[str, int], ...], failover: bool) -> None:
    found = parse(url)
    assert (tuple(uri.address for uri in found.uris), found.failover) == (members, failover)
    assert not any(uri.tls for uri in found.uris)
    assert parse(str(found)) == found


def test_options_of_tls_are_for_one_broker_or_for_all() -> None:
    one = parse("ssl://a?trust=ca.pem&socket.soLinger=1").uris[0]
    assert (one.tls, one.address, one.options.trust) == (True, ("a", 61617), "ca.pem")
    first, second = parse("failover:(ssl://a:1?trust=own.pem,nio+ssl://b:2)?trust=ca.pem&randomize=false").uris
    assert (first.options.trust, second.options.trust, second.tls) == ("own.pem", "ca.pem", True)


def test_a_login_is_read_and_not_shown() -> None:
    found = parse("failover:(tcp://ann:s%40cret@a:1,tcp://b:2)")
    assert login_of(found) == ("ann", "s@cret")
    assert "cret" not in str(found) + repr(found)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "not a broker's address"),
        ("a:61616", "not a broker's address"),
        ("tcp://", "not a broker's address"),
        ("tcp://a:0", "between 1 and 65535"),
        ("tcp://a:99999", "between 1 and 65535"),
        ("tcp://a:1?trust=x", "without TLS"),
        ("stomp://a:1", "OpenWire"),
        ("ssl://a?tlsMinimumVersion=2", "write 1.2 or 1.3"),
        ("tcp://a,tcp://b", "failover:"),
        ("failover:(tcp://a", "parenthesis"),
        ("failover:(tcp://a)b", "parenthesis"),
        ("tcp://ann:s3cret@a:x", "not a broker's address"),
        ("failover:(tcp://a:b@x,tcp://c:d@y)", "several users"),
        ("failover:(" + ",".join(f"tcp://a{i}" for i in range(65)) + ")", "more than 64"),
    ],
)
def test_refused(url: str, why: str) -> None:
    with pytest.raises(UriError, match=why) as told:
        parse(url)
    assert "s3cret" not in str(told.value)


@given(st.text(alphabet="tcp:/failover()@?,=[]1a.%", max_size=60))
def test_any_text(url: str) -> None:
    try:
        parse(url)
    except UriError:
        return
