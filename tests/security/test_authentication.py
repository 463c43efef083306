"""Who is let in, what a refusal tells, and how often scrypt runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amq.core.errors import AccessError, ConfigError
from amq.security import ANONYMOUS, Authenticator, Claim, LoginGate, PasswordHash, Users, authentication
from amq.security import users as users_module
from tests.patience import DEADLINE_S

KEY = bytes(32)
REAL_SCRYPT = users_module._scrypt


def cheap(password: str) -> PasswordHash:
    salt = b"salt of 16 bytes"
    return PasswordHash(1024, 8, 1, salt, REAL_SCRYPT(password, salt, 1024, 8, 1))


USERS = Users({"alice": cheap("one"), "bob": cheap("two")})


class Calls:
    """Counts verifications, and can hold them up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.costs: list[tuple[int, int, int]] = []
        self.go = threading.Event()
        self.go.set()
        self.running = threading.Event()

        def scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
            self.count += 1
            self.costs.append((n, r, p))
            self.running.set()
            assert self.go.wait(DEADLINE_S)
            return REAL_SCRYPT(password, salt, n, r, p)

        monkeypatch.setattr(users_module, "_scrypt", scrypt)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def refused(check: Authenticator, login: str, passcode: str, loopback: bool = False) -> tuple[str, str]:
    with pytest.raises(AccessError) as caught:
        check.authenticate(login, passcode, loopback)
    return caught.value.code, caught.value.description


@pytest.mark.parametrize("with_users", [True, False])
@pytest.mark.parametrize(
    ("policy", "loopback", "let_in"),
    [
        ("loopback", True, True),
        ("loopback", False, False),
        ("yes", True, True),
        ("yes", False, True),
        ("no", True, False),
        ("no", False, False),
    ],
)
def test_anonymous(policy: str, loopback: bool, let_in: bool, with_users: bool) -> None:
    check = Authenticator(USERS if with_users else None, policy)
    # Without a users file there is nothing to check a login against: it is not believed, and does no harm.
    for login, passcode in [("", "")] if with_users else [("", ""), ("alice", "one")]:
        if let_in:
            assert check.authenticate(login, passcode, loopback) == ANONYMOUS
        else:
            assert refused(check, login, passcode, loopback)[0] == "LOGIN_REQUIRED"


@pytest.mark.parametrize("policy", ["loopback", "yes", "no"])
def test_logins(policy: str) -> None:
    check = Authenticator(USERS, policy)
    assert check.authenticate("alice", "one", False) == "alice"
    assert check.authenticate("bob", "two", True) == "bob"
    wrong = [
        ("alice", "two"),
        ("alice", ""),
        ("carol", "one"),
        ("", "one"),
        ("alice\0", "one"),
        ("ALICE", "one"),
        ("alice", "one "),
        ("\ud800", "\ud800"),
        ("a" * 257, "x"),
        ("alice", "x" * 1025),
    ]
    # One answer for all, also from a connection that would be let in without a login.
    assert {refused(check, login, passcode, loopback=True) for login, passcode in wrong} == {
        ("LOGIN_REFUSED", "login refused: the login or the passcode is wrong")
    }


def test_a_login_is_verified_once(calls: Calls) -> None:
    check = Authenticator(USERS, "no", KEY)
    for _ in range(100):
        assert check.authenticate("alice", "one", False) == "alice"
    assert calls.count == 1
    assert check.quick("alice", "one", False) == "alice"
    assert check.quick("alice", "two", False) is None
    assert check.quick("bob", "two", False) is None


def test_a_wrong_login_is_verified_once_and_unknown_names_cost_the_same(calls: Calls) -> None:
    check = Authenticator(USERS, "no", KEY)
    for _ in range(10):
        refused(check, "alice", "wrong")
        refused(check, "nobody", "wrong")
    assert calls.costs == [(1024, 8, 1), (1024, 8, 1)]
    refused(Authenticator(Users({}), "no", KEY), "nobody", "wrong")
    assert calls.costs[2:] == [(1 << 14, 8, 1)]


def test_wrong_logins_do_not_push_out_good_ones_nor_fill_memory(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amq.security.authentication.REFUSED_MAX", 3)
    check = Authenticator(USERS, "no", KEY)
    check.authenticate("alice", "one", False)
    for number in range(10):
        refused(check, "alice", f"wrong {number}")
    assert len(check._refused) == 3
    count = calls.count
    assert check.authenticate("alice", "one", False) == "alice"
    refused(check, "alice", "wrong 9")
    assert calls.count == count
    refused(check, "alice", "wrong 0")  # forgotten, so checked again
    assert calls.count == count + 1


def test_a_changed_users_file_counts_at_once(calls: Calls) -> None:
    check = Authenticator(USERS, "no", KEY)
    check.authenticate("alice", "one", False)
    refused(check, "alice", "three")
    check.replace(Users({"alice": cheap("three")}), "no")
    refused(check, "alice", "one")
    assert check.authenticate("alice", "three", False) == "alice"
    refused(check, "bob", "two")
    check.replace(Users({}), "yes")
    refused(check, "alice", "three")
    assert check.authenticate("", "", False) == ANONYMOUS
    check.replace(None, "no")
    assert refused(check, "alice", "three")[0] == "LOGIN_REQUIRED"
    with pytest.raises(AccessError):
        check.verify("alice", "three")
    check.replace(USERS, "no")
    count = calls.count
    refused(check, "alice", "three")  # known to be wrong for this very line
    assert calls.count == count


def test_a_user_who_is_removed_during_a_login_is_not_let_in(calls: Calls) -> None:
    check = Authenticator(USERS, "no", KEY)
    calls.go.clear()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(check.authenticate, "alice", "one", False)
        assert calls.running.wait(DEADLINE_S)
        check.replace(Users({"alice": cheap("new"), "bob": cheap("two")}), "no")
        calls.go.set()
        with pytest.raises(AccessError):
            found.result(DEADLINE_S)
    check.replace(USERS, "no")
    assert check.authenticate("alice", "one", False) == "alice", "it was not wrong for that line"


def test_a_storm_of_equal_logins_is_one_verification(calls: Calls) -> None:
    check = Authenticator(USERS, "no", KEY)
    calls.go.clear()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(check.authenticate, "alice", "one", False) for _ in range(50)]
        assert calls.running.wait(DEADLINE_S)
        calls.go.set()
        assert {future.result(DEADLINE_S) for future in futures} == {"alice"}
    assert calls.count == 1


def test_the_event_loop_does_not_wait_for_scrypt(tmp_path: Path, calls: Calls) -> None:
    path = tmp_path / "users"
    path.write_text(f"alice:{cheap('one')}\n")
    path.chmod(0o600)

    async def scenario() -> None:
        gate = LoginGate(str(path), "loopback")
        try:
            calls.go.clear()
            logins = [asyncio.create_task(gate.authenticate(Claim("alice", "one", False))) for _ in range(20)]
            while not calls.running.is_set():
                await asyncio.sleep(0)
            assert (await gate.authenticate(Claim("", "", True))).user.name == ANONYMOUS  # while scrypt is held up
            with pytest.raises(AccessError):
                await gate.authenticate(Claim("", "", False))
            calls.go.set()
            assert {login.user.name for login in await asyncio.gather(*logins)} == {"alice"}
            assert calls.count == 1
            with pytest.raises(AccessError, match="wrong"):
                await gate.authenticate(Claim("alice", "two", False))
            path.write_text("alice:broken\n")
            with pytest.raises(ConfigError):
                gate.reload(str(path), "no")
            assert (await gate.authenticate(Claim("alice", "one", False))).user.name == "alice"
            with pytest.raises(AccessError):
                await gate.authenticate(Claim("", "", True))  # that rule needs no file
            path.write_text("")
            path.chmod(0o644)
            gate.reload(str(path), "no")
            assert len(gate.warnings) == 1
            with pytest.raises(AccessError):
                await gate.authenticate(Claim("alice", "one", False))
            gate.reload("", "yes")
            assert (await gate.authenticate(Claim("x", "y", False))).user.name == ANONYMOUS
            assert not gate.warnings
        finally:
            gate.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("amq-login")]


def test_a_gate_needs_a_good_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read users file"):
        LoginGate(str(tmp_path / "missing"), "no")
    LoginGate("", "yes").close()


def test_the_manual_says_what_the_code_does() -> None:
    """docs/security.md names codes, costs and bounds: they are these."""
    text = (Path(__file__).parents[2] / "docs/security.md").read_text(encoding="utf-8")
    cost = f"{users_module.COST_N}${users_module.COST_R}${users_module.COST_P}"
    said = (cost, "LOGIN_REFUSED", "LOGIN_REQUIRED", str(authentication.REFUSED_MAX), str(users_module.NAME_CHARS_MAX))
    assert [item for item in said if f"`{item}`" not in text and f" {item} " not in text] == []
