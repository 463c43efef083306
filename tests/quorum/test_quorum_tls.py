"""etcd over TLS with certificates of both sides, and users with a password."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from amq.core.errors import StoreError
from amq.doctor.coordinator import examine_coordinator
from amq.doctor.finding import Level
from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.store.coordinated.etcd import Etcd
from amq.store.coordinated.url import CoordinatorUrl
from amq.store.coordinator import ABSENT
from tests.certificates import Authority, needs_openssl
from tests.ensemble import EtcdEnsemble, ensemble, needs_etcd, wait_until

pytestmark = [needs_etcd, needs_openssl, pytest.mark.deep]
PASSWORD = "a long one of a machine"
_made: list[Etcd] = []


class _Protected(EtcdEnsemble):
    """One server, which lets in who has a certificate of our authority."""

    servers = 1
    scheme = "https"

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.authority = Authority(directory / "ca")
        self.pair = self.authority.pair("server")
        super().__init__(directory)

    def command(self, number: int) -> list[str]:
        given = {"cert-file": self.pair.certificate, "key-file": self.pair.key, "trusted-ca-file": self.authority.trust}
        return [*super().command(number), "--client-cert-auth", *(f"--{key}={value}" for key, value in given.items())]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Protected]:
    with ensemble(_Protected, tmp_path_factory.mktemp("tls") / "etcd") as found:
        assert isinstance(found, _Protected)
        (found.directory / "password").write_text(PASSWORD + "\n")
        root = opened(found)
        wait_until(lambda: root.read("any") is None, "the server answers")
        for user, role in (("root", "root"), ("amq", "amq")):
            root.call("auth/user/add", {"name": user, "password": PASSWORD}, user)
            root.call("auth/role/add", {"name": role}, role)
            root.call("auth/user/grant", {"user": user, "role": role}, user)
        everything = {"permType": "READWRITE", "key": "c2hvcC8=", "range_end": "c2hvcDA="}  # shop/ to shop0
        root.call("auth/role/grant", {"name": "amq", "perm": everything}, "amq")
        root.call("auth/enable", {}, "auth")
        yield found


def opened(server: _Protected, *options: str, user: str = "") -> Etcd:
    """With users, the gateway of etcd refuses a certificate that names one itself."""
    pair = server.authority.pair("", names="DNS:client", file="client")
    files = (f"caFile={server.authority.trust}", f"certificateFile={pair.certificate}", f"keyFile={pair.key}")
    given = [*files, *options, *([f"passwordFile={server.directory / 'password'}"] if user else [])]
    return made(server.url(*given, user=user))


def made(url: str) -> Etcd:
    _made.append(Etcd(CoordinatorUrl.parse(url), SystemThreads(), SystemClock()))
    return _made[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def test_a_user_with_certificate_and_password_reaches_its_namespace_alone(server: _Protected) -> None:
    good = opened(server, "namespace=shop", user="amq@")
    first = good.compare_and_set("key", b"value", ABSENT)
    assert first is not None
    good._token = "an old one, which the server has forgotten"
    found = good.read("key")
    assert found is not None
    assert (found.value, found.revision) == (b"value", first)
    with pytest.raises(StoreError, match="permission denied"):
        opened(server, user="amq@").read("key")


def test_without_password_or_certificate_nothing_is_told(server: _Protected) -> None:
    with pytest.raises((StoreError, OSError), match="user"):
        opened(server, "namespace=shop", "requestTimeout=500").read("key")
    (server.directory / "password").rename(server.directory / "right")
    (server.directory / "password").write_text("wrong")
    try:
        with pytest.raises(StoreError, match="authentication failed"):
            opened(server, "namespace=shop", user="amq@").read("key")
    finally:
        os.replace(server.directory / "right", server.directory / "password")
    with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|EOF"):
        made(server.url(f"caFile={server.authority.trust}", "requestTimeout=500")).read("key")
    with pytest.raises(OSError, match="certificate verify failed"):
        made(server.url("tls=true", "requestTimeout=500")).read("key")


def test_the_doctor_sees_that_it_is_protected_and_one_server(server: _Protected) -> None:
    url = opened(server, "namespace=shop", user="amq@").url
    found = {each.topic: each for each in examine_coordinator(url, quick=False).findings}
    assert found["connection"].level is Level.OK
    assert found["servers"].level is Level.NOTE
    assert found["namespace"].found == "shop"
    assert found["namespace"].why == "has no lock yet"
    session = opened(server, "namespace=shop", user="amq@").open_session()
    session.hold("fish/lock", b"of a replicated store")
    found = {each.topic: each for each in examine_coordinator(url, quick=True, group="fish").findings}
    assert (found["namespace"].found, found["namespace"].why) == ("shop/fish", "has a lock")
    session.close()
