"""The users file: reading it, and changing it without losing anything."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import ConfigError
from amq.security import PasswordHash, Users, add_user, hash_password, list_users, remove_user
from amq.security.users import parse_users

SALT = base64.b64encode(bytes(16)).decode()
DIGEST = base64.b64encode(bytes(32)).decode()
GOOD = f"scrypt$1024$8$1${SALT}${DIGEST}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.description
    return caught.value.code


def test_a_hash_survives_its_text_and_knows_its_password() -> None:
    made = hash_password("pässwörd")
    again = PasswordHash.parse(str(made))
    assert again == made
    assert again.matches("pässwörd")
    assert not again.matches("passwort")
    assert hash_password("pässwörd").salt != made.salt
    assert hash_password("a", salt=bytes(16)) == hash_password("a", salt=bytes(16))
    assert str(made)[20:] not in repr(made)


def test_scrypt_is_the_standard_one() -> None:
    """RFC 7914, section 12: N=1024, r=8, p=16, password `password`, salt `NaCl`; the first 32 of its 64 bytes."""
    digest = bytes.fromhex("fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162")
    assert PasswordHash(1024, 8, 16, b"NaCl", digest).matches("password")


@pytest.mark.parametrize("password", ["", "a" * 1025])
def test_unusable_passwords(password: str) -> None:
    assert code_of(lambda: hash_password(password)) == "PASSWORD_UNUSABLE"


def test_parse() -> None:
    text = f"\ufeff# our users\n\nalice:{GOOD}\r\n  bob@example.org:{GOOD}  \nüser:{GOOD}"
    users = Users(parse_users(text.encode(), "f"))
    assert list(users) == ["alice", "bob@example.org", "üser"]
    assert len(users) == 3
    assert (users["alice"].n, users["alice"].r, users["alice"].p) == (1024, 8, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alice", "f:1: the line has no colon"),
        (f"\nalice:{GOOD}\nalice:{GOOD}", "f:3: the user alice has two lines"),
        ("alice:secret", "is not hashed"),
        ("alice:$6$salt$hash", "is not hashed"),
        (f"alice:{GOOD}:x", "is not hashed"),
        (f":{GOOD}", "the user name is empty"),
        (f"a b:{GOOD}", "holds a space"),
        (f"a\tb:{GOOD}", "control character"),
        (f"anonymous:{GOOD}", "without a login"),
        (f"{'a' * 257}:{GOOD}", "longer than 256"),
        (f"a:scrypt$1023$8$1${SALT}${DIGEST}", "the cost of the hash is wrong"),
        (f"a:scrypt$512$8$1${SALT}${DIGEST}", "the cost of the hash is wrong"),
        (f"a:scrypt$1024$0$1${SALT}${DIGEST}", "the cost of the hash is wrong"),
        (f"a:scrypt$1024$8$0${SALT}${DIGEST}", "the cost of the hash is wrong"),
        (f"a:scrypt$65536$1$1${SALT}${DIGEST}", "the cost of the hash is wrong"),
        (f"a:scrypt$1048576$8$1${SALT}${DIGEST}", "would stall the broker"),
        (f"a:scrypt$262144$8$16${SALT}${DIGEST}", "would stall the broker"),
        (f"a:scrypt$1024$8$1$c2FsdA==${DIGEST}", "is not hashed"),
        (f"a:scrypt$1024$8$1${'A' * 23}=={'$'}{DIGEST}", "not base64"),
        (f"a:scrypt$1024$8$1${SALT}${DIGEST[:-4]}", "is not hashed"),
    ],
)
def test_bad_lines_are_named_and_not_shown(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:\d+: ") as caught:
        parse_users(text.encode(), "f")
    assert says in caught.value.description
    assert caught.value.code == "USERS_FILE_INVALID"
    assert "secret" not in caught.value.description
    assert DIGEST not in caught.value.description


NUMBERS = st.integers(0, 2**22) | st.sampled_from([1, 8, 1024, 16384])
HASHES = st.tuples(NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=70), st.binary(max_size=40)).map(
    lambda part: "scrypt${}${}${}${}${}".format(*part[:3], *(base64.b64encode(item).decode() for item in part[3:]))
)
LINES = st.tuples(st.text(max_size=8), HASHES | st.text(max_size=20)).map(":".join) | st.text(max_size=20)


@given(st.lists(LINES, max_size=5).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")) | st.binary())
def test_any_file_parses_or_is_a_config_error(data: bytes) -> None:
    try:
        users = parse_users(data, "f")
    except ConfigError:
        return
    written = "".join(f"{name}:{made}\n" for name, made in users.items()).encode()
    assert parse_users(written, "f") == users
    assert all(128 * made.n * made.r <= 256 << 20 for made in users.values())


@pytest.mark.parametrize(
    ("mode", "warning"), [(0o600, ""), (0o640, ""), (0o644, "can read it"), (0o646, "can write it")]
)
def test_permissions_are_warned_of(file: Path, mode: int, warning: str) -> None:
    file.write_text(f"alice:{GOOD}\n")
    file.chmod(mode)
    warnings = Users.read(str(file)).warnings
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)


def test_files_that_are_no_users_file(file: Path) -> None:
    assert code_of(lambda: Users.read(str(file))) == "USERS_FILE_UNREADABLE"
    assert code_of(lambda: Users.read(str(file.parent))) == "USERS_FILE_UNREADABLE"
    assert code_of(lambda: Users.read("a\0b")) == "USERS_FILE_UNREADABLE"
    file.write_bytes(b"\xff")
    assert code_of(lambda: Users.read(str(file))) == "USERS_FILE_INVALID"
    file.write_bytes(b"#" * (8 << 20) + b"#")
    assert code_of(lambda: Users.read(str(file))) == "USERS_FILE_INVALID"


def test_add_list_remove(file: Path) -> None:
    add_user(str(file), "alice", "one")
    add_user(str(file), "bob", "two")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list_users(str(file)) == ["alice", "bob"]
    assert code_of(lambda: add_user(str(file), "alice", "three")) == "USER_EXISTS"
    assert Users.read(str(file))["alice"].matches("one")
    add_user(str(file), "alice", "three", replace=True)
    assert Users.read(str(file))["alice"].matches("three")
    assert list_users(str(file)) == ["alice", "bob"]
    remove_user(str(file), "alice")
    assert list_users(str(file)) == ["bob"]
    assert code_of(lambda: remove_user(str(file), "alice")) == "USER_UNKNOWN"
    remove_user(str(file), "bob")
    assert (file.read_text(), os.listdir(file.parent)) == ("", ["users"])
    add_user(str(file), "carol", "four")
    assert list_users(str(file)) == ["carol"]


def test_edits_keep_what_is_not_theirs(file: Path) -> None:
    """Comments, order, a missing newline at the end, the mode, and a link to the file."""
    real = file.with_name("real")
    real.write_text(f"# ours\n\nalice:{GOOD}\n# theirs\nbob:{GOOD}")
    real.chmod(0o640)
    file.symlink_to("real")
    add_user(str(file), "carol", "x")
    remove_user(str(file), "alice")
    lines = real.read_text().split("\n")
    assert lines[:4] == ["# ours", "", "# theirs", f"bob:{GOOD}"]
    assert lines[4].startswith("carol:scrypt$16384$8$1$")
    assert lines[5:] == [""]
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert file.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_gives_no_file_away_where_others_could_have_put_it(file: Path) -> None:
    add_user(str(file), "alice", "one")
    before = file.read_text()
    os.chown(file, 12345, 23456)
    file.parent.chmod(0o1777)
    with pytest.raises(ConfigError, match="root gives no passwords away") as raised:
        add_user(str(file), "bob", "two")
    assert raised.value.code == "USERS_FILE_UNWRITABLE"
    assert (file.read_text(), sorted(os.listdir(file.parent))) == (before, [file.name])
    file.parent.chmod(0o750)
    add_user(str(file), "bob", "two")
    assert file.stat().st_uid == 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays_when_root_edits(file: Path) -> None:
    file.write_text("")
    os.chown(file, 12345, 23456)
    add_user(str(file), "alice", "x")
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 23456)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "#a", "anonymous", "a\n"])
def test_unusable_names_change_nothing(file: Path, name: str) -> None:
    assert code_of(lambda: add_user(str(file), name, "x")) == "USER_NAME_UNUSABLE"
    assert os.listdir(file.parent) == []


def test_a_broken_file_is_not_rewritten(file: Path) -> None:
    file.write_text("alice:secret\n")
    assert code_of(lambda: add_user(str(file), "bob", "x")) == "USERS_FILE_INVALID"
    assert code_of(lambda: remove_user(str(file), "alice")) == "USERS_FILE_INVALID"
    assert (file.read_text(), os.listdir(file.parent)) == ("alice:secret\n", ["users"])


def test_one_edit_at_a_time(file: Path) -> None:
    other = file.with_name("users.new")
    other.write_text("")
    assert code_of(lambda: add_user(str(file), "bob", "x")) == "USERS_FILE_BUSY"
    assert other.exists()
    assert code_of(lambda: remove_user(str(file.parent / "no" / "users"), "bob")) == "USERS_FILE_UNWRITABLE"
    assert code_of(lambda: add_user("a\0b", "bob", "x")) == "USERS_FILE_UNWRITABLE"


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod"])
def test_an_edit_that_fails_leaves_the_file_alone(file: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    before = f"alice:{GOOD}\n"
    file.write_text(before)

    def fail(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ConfigError, match="No space left"):
            add_user(str(file), "bob", "x")
    assert (file.read_text(), os.listdir(file.parent)) == (before, ["users"])
    add_user(str(file), "bob", "x")
    assert list_users(str(file)) == ["alice", "bob"]


def test_ctrl_c_in_the_middle_of_an_edit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f"alice:{GOOD}\n")

    def interrupt(_fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            remove_user(str(file), "alice")
    assert (list_users(str(file)), os.listdir(file.parent)) == (["alice"], ["users"])
