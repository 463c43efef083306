"""`amq config` and `amq user`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from amq.cli.main import main
from amq.config import OPTIONS, load
from amq.security import Users
from tests.certificates import Authority, needs_openssl


def run(*words: object, data: str = "", env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(main, list(map(str, words)), input=data)


def test_show_names_every_option_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "amq.toml"
    file.write_text('[queues]\nprefetchSize = 7\n[lock]\nlockKeepAlivePeriod = "3s"\n')
    shown = run("config", "show", file, "-o", "logLevel=debug", "--json", env={"AMQ_MAX_CONNECTIONS": "9"})
    assert shown.exit_code == 0, shown.output
    by_key = {setting["key"]: setting for setting in json.loads(shown.stdout)}
    assert set(by_key) == {option.key for option in OPTIONS}
    assert (by_key["prefetchSize"]["value"], by_key["prefetchSize"]["source"]) == (7, f"{file}:2")
    assert (by_key["lockKeepAlivePeriod"]["value"], by_key["lockKeepAlivePeriod"]["unit"]) == (3.0, "s")
    assert by_key["logLevel"]["source"] == "-o logLevel"
    assert by_key["maxConnections"]["source"] == "environment AMQ_MAX_CONNECTIONS"
    assert by_key["duplicateWindow"]["source"] == "default"
    table = run("config", "show", file).stdout
    assert all(option.key in table for option in OPTIONS)


def test_toml_can_be_read_again(tmp_path: Path) -> None:
    options = ["-o", 'store=/srv/a "b"\\c', "-o", "transports=stomp://0.0.0.0:1,stomp://[::1]:2"]
    file = tmp_path / "amq.toml"
    file.write_text(run("config", "show", *options, "--toml").stdout)
    assert load(str(file)) == load(overrides=options[1::2])


@needs_openssl
def test_check_tries_the_files_of_tls(authority: Authority, tmp_path: Path) -> None:
    """And whether clients find the broker under a name that its certificate has."""
    pair, other = authority.pair("server", names="DNS:mq1.example.com"), authority.pair("other")
    file = tmp_path / "amq.toml"
    file.write_text(
        f'[broker]\nstore = "/x"\ntransports = ["stomp+ssl://0.0.0.0:61614"]\n[security]\nanonymous = "yes"\n'
        f'certificate = "{pair.certificate}"\ncertificateKey = "{pair.key}"\n'
    )
    found = run("config", "check", file)
    assert (found.exit_code, "does not name" in found.stderr) == (0, True), found.output
    named = "advertisedTransports=stomp+ssl://mq1.example.com:61614"
    assert json.loads(run("config", "check", file, "-o", named, "--json").stdout)["warnings"] == []
    wrong = run("config", "check", file, "-o", f"certificateKey={other.key}", "-o", f"permissionsFile={tmp_path}/none")
    assert wrong.exit_code == 3
    permissions, certificate = wrong.stderr.strip().split("\n")
    assert f"cannot read the permissions in {tmp_path}/none" in permissions
    assert "do not belong together" in certificate
    ldap = ("-o", "ldapUrls=ldap://x", "-o", "ldapUserBase=dc=x", "-o", f"ldapTrust={tmp_path}/none")
    assert f"{tmp_path}/none" in run("config", "check", file, *ldap).stderr


def test_check(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[broker]\ntransports = ["stomp://0.0.0.0:61613"]\n')
    bad.write_text("[lock]\nlockKeepAlivePeriod = 0\n[queues]\nprefetch = 1\n")
    fine = run("config", "check", good)
    assert fine.exit_code == 0
    assert fine.stdout == f"{good}: a broker can start with it; set its store by --store or AMQ_STORE\n"
    assert run("config", "check", good, "-o", "store=/x").stdout == f"{good}: a broker can start with it\n"
    assert "amq: warning: " in fine.stderr, "nobody could log in from other hosts"
    assert json.loads(run("config", "check", good, "--json").stdout)["warnings"]
    wrong = run("config", "check", bad)
    assert wrong.exit_code == 3
    first, second = wrong.stderr.strip().split("\n")
    assert first.startswith(f"amq: {bad}:2: lockKeepAlivePeriod")
    assert second.startswith(f"amq: {bad}:4: prefetch")
    as_json = run("config", "check", bad, "--json")
    assert (as_json.exit_code, len(json.loads(as_json.stdout)["problems"])) == (3, 2)


def test_check_finds_what_only_a_start_would_find(tmp_path: Path) -> None:
    users, bad = tmp_path / "users", tmp_path / "bad.toml"
    bad.write_text(f'[broker]\nname = "no spaces!"\n[security]\nusersFile = "{users}"\n')
    problems = json.loads(run("config", "check", bad, "--json").stdout)["problems"]
    assert [text for text in ("no spaces!", str(users)) if text in "\n".join(problems)] == ["no spaces!", str(users)]
    wrong = run("config", "check", bad)
    assert (wrong.exit_code, len(wrong.stderr.strip().split("\n")), wrong.stdout) == (3, 2, "")
    assert run("user", "add", "alice", "--users", users, "--password-stdin", data="secret\n").exit_code == 0
    users.chmod(0o644)
    good = run("config", "check", "-o", f"usersFile={users}", "--json")
    assert (good.exit_code, "everybody" in good.stdout) == (0, True)
    users.write_text("alice:secret\n")
    broken = run("config", "check", "-o", f"usersFile={users}")
    assert (broken.exit_code, f"{users}:1: " in broken.stderr, "secret" in broken.stderr) == (3, True, False)


def test_show_is_json_or_toml() -> None:
    assert run("config", "show", "--json", "--toml").exit_code == 2


def test_users(tmp_path: Path) -> None:
    file = tmp_path / "users"
    added = run("user", "add", "alice", "--users", file, "--password-stdin", data="secret\n")
    assert (added.exit_code, added.stdout) == (0, "alice can log in\n")
    assert run("user", "add", "bob", "--users", file, "--password-stdin", data="pw").exit_code == 0
    assert Users.read(str(file))["alice"].matches("secret")
    assert run("user", "list", "--users", file).stdout == "alice\nbob\n"
    assert json.loads(run("user", "list", "--users", file, "--json").stdout) == ["alice", "bob"]
    again = run("user", "add", "alice", "--users", file, "--password-stdin", data="new\n")
    assert (again.exit_code, "[USER_EXISTS]" in again.stderr) == (3, True)
    assert run("user", "add", "alice", "--users", file, "--password-stdin", "--replace", data="new\n").exit_code == 0
    assert Users.read(str(file))["alice"].matches("new")
    assert run("user", "remove", "bob", "--users", file).exit_code == 0
    assert run("user", "list", env={"AMQ_USERS_FILE": str(file)}).stdout == "alice\n"
    assert run("user", "remove", "bob", "--users", file).exit_code == 3


def test_the_password_is_never_an_argument(tmp_path: Path) -> None:
    done = run("user", "add", "alice", "--users", tmp_path / "users", data="secret\n")
    assert done.exit_code == 3
    assert "--password-stdin" in done.stderr


def test_a_password_in_a_file_of_windows(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert run("user", "add", "alice", "--users", users, "--password-stdin", data="secret\r\n").exit_code == 0
    assert Users.read(str(users))["alice"].matches("secret")


def test_a_password_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    data = b"secret\xff\n"
    done = CliRunner().invoke(main, ["user", "add", "alice", "--users", str(tmp_path / "u"), "--password-stdin"], data)
    assert (done.exit_code, "[PASSWORD_UNUSABLE]" in done.stderr, "secret" in done.output) == (3, True, False)


def test_the_password_is_asked_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amq.cli import user

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setattr(user, "sys", type("sys", (), {"stdin": Terminal}))
    done = run("user", "add", "alice", "--users", tmp_path / "users", data="secret\nsecret\n")
    assert done.exit_code == 0, done.output
    assert "secret" not in done.output
    assert Users.read(str(tmp_path / "users"))["alice"].matches("secret")
