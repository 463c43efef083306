"""Ways to log in that need an extra: without it the broker says what to install, and changes nothing."""

from __future__ import annotations

import sys

import pytest

from amq.config import load
from amq.core.errors import ConfigError
from amq.node.logins import OwnLogins
from amq.security import LoginGate

WAYS = {
    "jwt": ("tokens", ["tokenIssuer=https://issuer.example", "tokenAudience=amq"]),
    "ldap3": ("directory", ["ldapUrls=ldaps://a.example", "ldapUserBase=dc=example"]),
}


@pytest.mark.parametrize("package", WAYS)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    module, options = WAYS[package]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"amq.security.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "amq.security.issuer_keys", raising=False)
    gate = LoginGate("", "loopback")
    with pytest.raises(ConfigError, match=r"pip install 'amq\[(jwt|ldap)\]'") as raised:
        OwnLogins(load(None, {}, options), gate)
    assert raised.value.code == "EXTRA_MISSING"
    gate.close()


def test_ways_that_go_are_closed_and_a_read_that_comes_too_late_changes_nothing() -> None:
    gate = LoginGate("", "loopback")
    logins = OwnLogins(load(None, {}, [*WAYS["jwt"][1], *WAYS["ldap3"][1]]), gate)
    before = gate._others
    assert len(before) == 2
    logins.read(load(None, {}, []), lambda: False)
    assert gate._others is before
    logins.read(load(None, {}, []), lambda: True)
    assert gate._others == ()
    with pytest.raises(RuntimeError, match="shutdown"):
        before[1]._executor.submit(print)  # type: ignore[attr-defined]
    gate.close()
