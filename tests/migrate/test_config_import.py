"""`amq config import`, and `amq start` with the configuration of another broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest
from brokers import Broker
from click.testing import CliRunner, Result

from amq.cli.foreign import read_users
from amq.cli.main import main
from amq.core.errors import AccessError
from amq.security import Claim, LoginGate, Users
from amq_migrate.foreign import load
from tests.cli.amq_process import ROOT, amq, running
from tests.patience import DEADLINE_S

FILES = Path(__file__).parent / "files"
GROUP = FILES / "shared-store.xml"
PROPERTIES = ("--property", "activemq.data=/data", "--property", "feeder.password=feed me")


def run(*words: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(main, ["config", *map(str, words)])


def test_a_file_and_a_report() -> None:
    done = run("import", GROUP, *PROPERTIES)
    assert done.exit_code == 0, done.stderr
    assert 'store = "/sharedFileSystem/sharedBrokerData"' in done.stdout
    line = "52: carried: persistenceAdapter/kahaDB@lockKeepAlivePeriod: lockKeepAlivePeriod = 5s"
    assert f"{GROUP}:{line}\n" in done.stderr
    lines = done.stderr.strip().split("\n")
    assert lines[-5].endswith(" not supported, 7 without meaning here"), lines[-5]
    assert lines[-4:-2] == [
        "    amq cluster init --cluster DIR --stores 4 -o deadLetterPrefix=DLQ. -o 'virtualTopics=>' "
        "-o 'virtualTopicConsumers=Reader.*.'",
        "    amq start FILE.toml --cluster DIR --name NAME  # on this host, other; a name for each",
    ]
    assert lines[-2] == "2 users not written: give --users FILE, or use `amq user add`"
    assert lines[-1] == "rules not written: give --permissions FILE"
    assert 'usersFile = "users"' in done.stdout
    assert "feed me" not in done.output
    assert "read me" not in done.output


def test_the_report_in_the_manual_is_real() -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    lines = re.findall(r"^    activemq\.xml(:.*?)…?$", page, re.MULTILINE)
    assert len(lines) == 5
    report = run("import", GROUP, *PROPERTIES).stderr
    for line in lines:
        assert f"{GROUP}{line.rstrip()}" in report


def test_what_is_written_can_be_started(tmp_path: Path) -> None:
    output, users = tmp_path / "amq.toml", tmp_path / "users"
    rules = tmp_path / "permissions.toml"
    done = run("import", GROUP, "--output", output, "--users", users, "--permissions", rules, *PROPERTIES)
    assert (done.exit_code, done.stdout) == (0, "")
    assert load(str(output)).users_file == str(users)
    assert 'usersFile = "users"' in output.read_text()
    assert [Users.read(str(users))[name].matches(word) for name, word in (("feeder", "feed me"), ("reader", "read me"))]
    assert "read me" not in output.read_text() + users.read_text()
    assert run("check", output).exit_code == 0


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    output, users = tmp_path / "amq.toml", tmp_path / "users"
    output.write_text("# mine\n")
    words = ("import", GROUP, "--output", output, "--users", users, *PROPERTIES)
    refused = run(*words)
    assert (refused.exit_code, "give another --output, or --force" in refused.stderr) == (3, True)
    assert (output.read_text(), users.exists()) == ("# mine\n", False)
    output.chmod(0o600)
    assert run(*words, "--force").exit_code == 0
    assert (output.stat().st_mode & 0o777, sorted(os.listdir(tmp_path))) == (0o600, ["amq.toml", "users"])
    output.unlink()
    again = run(*words)
    assert (again.exit_code, "the user feeder exists" in again.stderr, output.exists()) == (3, True, False)


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    done = run("import", FILES / "backup.xml", "--output", tmp_path / "none" / "amq.toml")
    assert (done.exit_code, "No such file or directory" in done.stderr) == (3, True)


def test_json() -> None:
    done = run("import", GROUP, *PROPERTIES, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["format"], found["users"]) == ("activemq", ["feeder", "reader"])
    assert found["toml"] == run("import", GROUP, *PROPERTIES).stdout
    line = next(each for each in found["report"] if each["options"] == ["lockKeepAlivePeriod = 5s"])
    assert line["path"] == "beans/broker/persistenceAdapter/kahaDB@lockKeepAlivePeriod"
    assert (line["line"], line["status"]) == (52, "carried")
    assert sum(found["counts"].values()) == len(found["report"])
    assert "feed me" not in done.stdout


def test_strict() -> None:
    assert run("import", GROUP, *PROPERTIES, "--strict").exit_code == 8
    assert run("import", FILES / "backup.xml", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("import", GROUP), 3, "give it with --property feeder.password=VALUE"),
        (("import", GROUP, "--property", "activemq.data"), 2, "write NAME=VALUE"),
        (("import", FILES / "none.xml"), 3, "cannot be read"),
        (("import", Path(__file__)), 3, "neither XML nor"),
    ],
)
def test_bad_input(words: tuple[object, ...], code: int, expected: str) -> None:
    done = run(*words)
    assert (done.exit_code, expected in done.stderr) == (code, True), done.stderr


def test_show_and_check_read_it_too(tmp_path: Path) -> None:
    path = FILES / "backup.xml"
    shown = run("show", path, "--json")
    assert shown.exit_code == 0, shown.stderr
    by_key = {setting["key"]: setting for setting in json.loads(shown.stdout)}
    assert by_key["failbackDelay"]["source"] == f"{path}:8"
    assert by_key["failoverOnShutdown"]["source"] == f"{path}, in Artemis a clean stop does not fail over"
    assert run("check", path).exit_code == 0
    other = tmp_path / "activemq.xml"
    connector = "<transportConnector uri='mqtt://h:1'/>"
    other.write_text(f"<broker><transportConnectors>{connector}</transportConnectors></broker>")
    lacks = run("check", other)
    assert (lacks.exit_code, "has no connector for STOMP" in lacks.stderr) == (3, True)


ACTIVEMQ = """\
<broker>
  <destinationPolicy><policyMap><policyEntries>
    <policyEntry queue="&gt;" queuePrefetch="{prefetch}"/>
  </policyEntries></policyMap></destinationPolicy>
  <persistenceAdapter><kahaDB directory="${{data}}/kahadb" lockKeepAlivePeriod="{period}"/></persistenceAdapter>
  <transportConnectors>
    <transportConnector uri="stomp://127.0.0.1:0"/><transportConnector uri="mqtt://127.0.0.1:1883"/>
  </transportConnectors>
</broker>
"""


@pytest.mark.deep
def test_a_broker_runs_on_the_file_of_another(tmp_path: Path) -> None:
    store = tmp_path / "data" / "kahadb"
    store.parent.mkdir()
    path = tmp_path / "activemq.xml"
    path.write_text(ACTIVEMQ.format(prefetch=5, period=500))
    broker = Broker(store, "a", 0, {})
    words = ("start", path, "--property", f"data={store.parent}", "--name", "a")
    with running(*words, env={"AMQ_LOG_FORMAT": "json"}) as process:
        reader = broker.adopt(process)
        try:
            assert str(broker.wait_serving()["urls"][0]).startswith("stomp://127.0.0.1:")
            warned = [line["event"] for line in broker.log if line["level"] == "warning" and str(path) in line["event"]]
            assert len(warned) == 1
            assert warned[0].startswith(f"{path}:7: unsupported: transportConnectors/transportConnector[mqtt:")
            path.write_text(ACTIVEMQ.format(prefetch=7, period=900))
            assert "prefetchSize: 5 → 7" in str(broker.wait_event("configuration changed")["changes"])
            waits = broker.wait_event("this change waits for a restart")["change"]
            assert waits == "lockKeepAlivePeriod: 500ms → 900ms"
            seen = len(broker.log)
            path.write_text("<broker>")
            assert "is not valid XML" in str(broker.wait_event("configuration not changed", after=seen)["reason"])
            broker.signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            reader.join()
    assert (store / "journal").is_dir()


@pytest.mark.deep
def test_a_start_is_refused_as_with_our_own_file(tmp_path: Path) -> None:
    path = tmp_path / "activemq.xml"
    path.write_text(ACTIVEMQ.format(prefetch=5, period=500))
    refused = amq("start", path)
    assert (refused.returncode, f"{path}:5: directory needs a value for ${{data}}" in refused.stderr) == (3, True)
    path.write_text("<!DOCTYPE broker><broker/>")
    assert "document type declaration" in amq("start", path).stderr


SECURED = """\
<broker><persistenceAdapter><kahaDB directory="{store}"/></persistenceAdapter>
  <plugins><simpleAuthenticationPlugin><users>
    <authenticationUser username="alice" password="{password}"/></users></simpleAuthenticationPlugin></plugins>
  <transportConnectors><transportConnector uri="stomp://127.0.0.1:0"/></transportConnectors></broker>
"""


def test_users_of_the_other_broker_can_log_in(tmp_path: Path) -> None:
    path = tmp_path / "activemq.xml"
    path.write_text(SECURED.format(store=tmp_path / "store", password="${pw}"))
    config = load(str(path), properties={"pw": "one"})
    assert (config.users_file, config.anonymous) == (str(path), "no")
    assert config.sources["users_file"] == f"{path}:3"
    gate = LoginGate(config.users_file, config.anonymous, lambda file: read_users(file, str(path), {"pw": "one"}))
    assert asyncio.run(gate.authenticate(Claim("alice", "one", True))).user.name == "alice"
    with pytest.raises(AccessError):
        asyncio.run(gate.authenticate(Claim("alice", "two", True)))
    with pytest.raises(AccessError):
        asyncio.run(gate.authenticate(Claim("", "", True)))
    assert "holds passwords that can be read" in gate.warnings[0]
    path.write_text(SECURED.format(store=tmp_path / "store", password="two"))
    gate.reload(config.users_file, config.anonymous)
    assert asyncio.run(gate.authenticate(Claim("alice", "two", True))).user.name == "alice"
    gate.close()
    checked = run("check", path)
    assert (checked.exit_code, "holds passwords that can be read" in checked.stderr) == (0, True)


@pytest.mark.parametrize(("name", "told"), [("a b", "holds a space"), ("alice", "is here twice")])
def test_users_that_cannot_be_taken_over(tmp_path: Path, name: str, told: str) -> None:
    path = tmp_path / "activemq.xml"
    more = f'<authenticationUser username="{name}" password="x"/></users>'
    path.write_text(SECURED.format(store=tmp_path, password="y").replace("</users>", more))
    for words in (("check", path), ("import", path, "--users", tmp_path / "users")):
        refused = run(*words)
        assert (refused.exit_code, f"{path}:3: " in refused.stderr, told in refused.stderr) == (3, True, True)
    assert not (tmp_path / "users").exists()


def test_many_users_are_hashed_once_by_an_import(tmp_path: Path) -> None:
    path = tmp_path / "activemq.xml"
    more = "".join(f'<authenticationUser username="u{number}" password="x"/>' for number in range(200))
    path.write_text(SECURED.format(store=tmp_path, password="y").replace("</users>", f"{more}</users>"))
    refused = run("check", path)
    assert (refused.exit_code, "has more than 200 users" in refused.stderr) == (3, True)
