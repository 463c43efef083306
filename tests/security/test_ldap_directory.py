"""Logins against a real slapd: over TLS, by two ways to find a user, with servers that are away, silent or bent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from amq.config import load
from amq.core.errors import AccessError, ConfigError
from amq.security import ANONYMOUS, Claim, Login, LoginGate, directory
from amq.security.directory import REMEMBER_S, SKIP_S, LdapDirectory
from amq.security.users_edit import add_user
from bench.wire import WireError
from tests.brokers import Brokers
from tests.certificates import Authority, needs_openssl
from tests.fakes import FakeClock
from tests.patience import DEADLINE_S
from tests.sampling import only, sampled
from tests.slapd import BASE, PASSWORDS, Slapd, needs_directory

pytestmark = [needs_directory, needs_openssl]


@dataclass(frozen=True)
class Settings:
    ldap_urls: str
    ldap_trust: str = ""
    ldap_start_tls: bool = True
    ldap_user_base: str = f"ou=people,{BASE}"
    ldap_user_attribute: str = "uid"
    ldap_bind_user: str = ""
    ldap_bind_password_file: str = ""
    ldap_group_base: str = f"ou=groups,{BASE}"
    ldap_group_member: str = "member"
    ldap_timeout_s: float = DEADLINE_S


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def slapd(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    slapd = Slapd(tmp_path_factory.mktemp("slapd"), authority.pair("server"), authority.trust)
    yield slapd
    slapd.stop()


@pytest.fixture
def plain(slapd: Slapd, authority: Authority) -> Settings:
    """ldap:// with StartTLS; users are directly below one entry."""
    return Settings(f"ldap://localhost:{slapd.port}", str(authority.trust))


def searching(settings: Settings, folder: Path, password: str = PASSWORDS["search"]) -> Settings:
    """By an account of the broker's, anywhere below the base."""
    (folder / "password").write_text(password + "\n")
    return replace(
        settings,
        ldap_user_base=BASE,
        ldap_bind_user=f"uid=search,ou=people,{BASE}",
        ldap_bind_password_file=str(folder / "password"),
    )


def log_in(settings: Settings | LdapDirectory, login: str, passcode: str) -> Login:
    way = settings if isinstance(settings, LdapDirectory) else LdapDirectory(settings, lambda _: False)
    try:
        return asyncio.run(way.login(Claim(login, passcode)))
    finally:
        if way is not settings:
            way.close()


def refused(settings: Settings | LdapDirectory, login: str, passcode: str, code: str = "LOGIN_REFUSED") -> str:
    with pytest.raises(AccessError) as raised:
        log_in(settings, login, passcode)
    assert raised.value.code == code
    return str(raised.value)


@pytest.mark.parametrize("finds", ["direct", "search"])
@pytest.mark.parametrize("scheme", ["ldap", "ldaps", "clear"])
def test_users_have_the_groups_of_the_directory(
    slapd: Slapd, plain: Settings, tmp_path: Path, scheme: str, finds: str
) -> None:
    settings = replace(plain, ldap_start_tls=scheme != "clear")
    if scheme == "ldaps":
        settings = replace(settings, ldap_urls=f"ldaps://localhost:{slapd.tls_port}")
    if finds == "search":
        settings = searching(settings, tmp_path)
    login = log_in(settings, "alice", PASSWORDS["alice"])
    assert (login.user, login.shown) == (("alice", {"shop", "audit"}), "directory")
    assert log_in(settings, "bob", PASSWORDS["bob"]).user.roles == {"audit"}
    wrong = [
        ("alice", PASSWORDS["bob"]),
        ("alice", PASSWORDS["alice"] + "\0"),
        ("nobody", "x"),
        (ANONYMOUS, "x"),
        ("a" * 257, "x"),
        ("alice", "x" * 1025),
        ("\udc80", "x"),
    ]
    for name in ("alice,ou=people", "*", "ali*", "alice)(uid=*", "ALICE", "alice ", "al\\69ce", "alice+cn=alice"):
        wrong.append((name, PASSWORDS["alice"]))
    assert {refused(settings, *each) for each in wrong} == {"login refused: the login or the passcode is wrong"}


def test_an_empty_password_is_never_sent(plain: Settings) -> None:
    """A directory takes it for a login of nobody, and says that it is right."""
    way = LdapDirectory(plain, lambda name: name == "local")
    assert not way.knows(Claim("alice", ""))
    assert not way.knows(Claim("", "x"))
    assert not way.knows(Claim("local", "x"))
    assert way.knows(Claim("alice", "x"))
    way.close()


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
def test_a_server_with_a_wrong_certificate_gets_no_password(
    slapd: Slapd, plain: Settings, authority: Authority, tmp_path: Path, scheme: str
) -> None:
    port = slapd.port if scheme == "ldap" else slapd.tls_port
    stranger = Authority(tmp_path / "other")
    before = slapd.binds()
    refused(
        replace(plain, ldap_urls=f"{scheme}://localhost:{port}", ldap_trust=str(stranger.trust)),
        "alice",
        "x",
        "LOGIN_UNAVAILABLE",
    )
    other = Slapd(tmp_path / "slapd", authority.pair("elsewhere", names="DNS:elsewhere.example"), authority.trust)
    try:
        port = other.port if scheme == "ldap" else other.tls_port
        refused(replace(plain, ldap_urls=f"{scheme}://localhost:{port}"), "alice", "x", "LOGIN_UNAVAILABLE")
        assert (slapd.binds(), other.binds()) == (before, 0)
    finally:
        other.stop()


@contextmanager
def silent(data: bytes = b"", came: list[object] | None = None) -> Iterator[int]:
    """The port of a server that takes connections, which go to `came`, and says `data` at the first word that it
    hears."""
    with ExitStack() as open_sockets, socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            try:
                while True:
                    client = open_sockets.enter_context(server.accept()[0])
                    if came is not None:
                        came.append(client)
                    if data:
                        client.recv(4096)
                        client.sendall(data)
            except OSError:
                return  # the test is over

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("scheme", only(["ldap", "ldaps"], "ldaps"))
def test_the_next_server_is_asked_and_the_silent_one_is_left_alone_for_a_while(plain: Settings, scheme: str) -> None:
    clock = FakeClock()
    came: list[object] = []
    with silent(came=came) as port:
        urls = f"ldap://127.0.0.1:1, {scheme}://127.0.0.1:{port}, {plain.ldap_urls}"
        way = LdapDirectory(replace(plain, ldap_urls=urls, ldap_timeout_s=2.0), lambda _: False, clock)
        assert log_in(way, "alice", PASSWORDS["alice"]).user.name == "alice"
        refused(way, "alice", "wrong")
        assert len(came) == 1
        assert list(way._failed_at) == urls.replace(",", " ").split()[:2]
        clock.advance(SKIP_S + 1)
        refused(way, "alice", "wrong again")
        assert len(came) == 2, "the silent one is asked again"
        way.close()


def test_the_event_loop_does_not_wait_and_a_storm_is_one_question(slapd: Slapd, plain: Settings) -> None:
    clock = FakeClock()
    way = LdapDirectory(plain, lambda _: False, clock)

    async def storm() -> None:
        before = slapd.binds()
        claim = Claim("alice", PASSWORDS["alice"])
        logins = await asyncio.gather(*(way.login(claim) for _ in range(200)))
        assert {login.user.name for login in logins} == {"alice"}
        await way.login(claim)
        assert slapd.binds() == before + 1
        clock.advance(REMEMBER_S + 1)
        await way.login(claim)
        assert slapd.binds() == before + 2, "the directory may have changed meanwhile"

    asyncio.run(asyncio.wait_for(storm(), DEADLINE_S))
    way.close()

    async def held_up() -> None:
        with silent() as port:
            settings = replace(plain, ldap_urls=f"ldaps://127.0.0.1:{port}", ldap_timeout_s=1.0)
            slow = LdapDirectory(settings, lambda _: False)
            waiting = asyncio.create_task(slow.login(Claim("alice", "x")))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert turns > 1, "the loop turned while the login waited"
            assert isinstance(waiting.exception(), AccessError)
            slow.close()

    asyncio.run(asyncio.wait_for(held_up(), DEADLINE_S))


def test_what_waits_and_what_is_remembered_is_bounded(plain: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "REMEMBERED_MAX", 1)
    monkeypatch.setattr(directory, "WAITING_MAX", 8)
    way = LdapDirectory(plain, lambda _: False)
    for name in ("alice", "bob", "alice"):
        log_in(way, name, PASSWORDS[name])
        assert len(way._remembered) == 1

    async def storm() -> None:
        guesses = (way.login(Claim("alice", f"guess {number}")) for number in range(20))
        found = await asyncio.gather(*guesses, return_exceptions=True)
        codes = [getattr(each, "code", "") for each in found]
        assert (codes.count("LOGIN_REFUSED"), codes.count("LOGIN_UNAVAILABLE")) == (8, 12)

    asyncio.run(storm())
    assert (len(way._questions), len(way._remembered)) == (0, 1)
    way.close()
    monkeypatch.setattr(directory, "ROLES_MAX", 1)
    assert "more than 1" in refused(plain, "alice", PASSWORDS["alice"])


RIGHT = bytes.fromhex("300c02010161070a010004000400")  # the answer of a server that lets in everybody


@pytest.mark.parametrize("seed", sampled(range(12), every=6))
def test_bent_answers_let_nobody_in(plain: Settings, seed: int) -> None:
    dice = Random(seed)
    bent = bytearray(RIGHT * dice.randrange(1, 4) if seed % 3 else dice.randbytes(dice.randrange(1, 300)))
    for _ in range(dice.randrange(0, 4)):
        bent[dice.randrange(len(bent))] = dice.randrange(256)
    if seed == 11:
        bent = bytearray(b"\x30\x84\xff\xff\xff\xff")
    with silent(bytes(bent)) as port:
        settings = replace(plain, ldap_urls=f"ldap://127.0.0.1:{port}", ldap_start_tls=False, ldap_timeout_s=1.0)
        with pytest.raises(AccessError):
            log_in(settings, "alice", PASSWORDS["alice"])


def test_the_account_of_the_broker_is_not_the_clients(plain: Settings, tmp_path: Path) -> None:
    said = refused(searching(plain, tmp_path, "wrong"), "alice", PASSWORDS["alice"], "LOGIN_UNAVAILABLE")
    assert "wrong" not in said
    for broken in ({"ldap_bind_password_file": str(tmp_path / "absent")}, {"ldap_trust": str(tmp_path / "absent")}):
        with pytest.raises(ConfigError):
            LdapDirectory(replace(plain, **broken), lambda _: False)


def test_the_users_file_goes_first(plain: Settings, tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(str(users), "alice", "of the file")
    gate = LoginGate(str(users), "no")
    gate.use([LdapDirectory(plain, gate.is_local)])

    async def scenario() -> None:
        assert (await gate.authenticate(Claim("alice", "of the file"))).shown == "password"
        assert (await gate.authenticate(Claim("bob", PASSWORDS["bob"]))).shown == "directory"
        for login, passcode in (("alice", PASSWORDS["alice"]), ("bob", "of the file"), ("bob", "")):
            with pytest.raises(AccessError):
                await gate.authenticate(Claim(login, passcode))

    asyncio.run(scenario())
    gate.close()


def test_a_real_broker_asks_the_directory(plain: Settings, tmp_path: Path) -> None:
    rules = tmp_path / "permissions.toml"
    rules.write_text('[roles]\nshop = []\n[queues.orders]\nwrite = ["shop"]\n')
    options = {
        "ldapUrls": plain.ldap_urls,
        "ldapTrust": plain.ldap_trust,
        "ldapUserBase": plain.ldap_user_base,
        "ldapGroupBase": plain.ldap_group_base,
        "anonymous": "no",
        "permissionsFile": rules,
    }
    with Brokers(tmp_path, **options) as brokers:
        broker = brokers.master()
        for name, may in (("alice", True), ("bob", False)):
            with broker.connect(login=name, passcode=PASSWORDS[name]) as client:
                client.send("SEND", {"destination": "/queue/orders", "receipt": "1"}, b"x")
                if may:
                    client.receipt("1", DEADLINE_S)
                else:
                    with pytest.raises(WireError, match="may not send"):
                        client.receipt("1", DEADLINE_S)
        with pytest.raises(WireError, match="wrong"):
            broker.connect(login="alice", passcode="wrong")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ldapUserBase": ""}, "without ldapUserBase"),
        ({"ldapUrls": "http://a"}, "must name servers"),
        ({"ldapUrls": "ldap://a.example", "ldapStartTls": "false"}, "in the clear"),
        ({"ldapUrls": ""}, "no effect"),
        ({"ldapBindUser": "cn=x"}, "belong together"),
    ],
)
def test_options_of_the_directory_that_make_no_sense_are_told(options: dict[str, str], says: str) -> None:
    given = {"ldapUrls": "ldaps://a.example", "ldapUserBase": BASE, "anonymous": "no", **options}
    with pytest.raises(ConfigError, match=says):
        load(None, {}, [f"{key}={value}" for key, value in given.items()])
    load(None, {}, ["ldapUrls=ldap://127.0.0.1:389", f"ldapUserBase={BASE}", "ldapStartTls=false", "anonymous=no"])
