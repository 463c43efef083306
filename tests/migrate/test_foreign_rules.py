"""Rights of ActiveMQ and Artemis become a permissions file that grants what they granted, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.cli.foreign import read_permissions
from amq.cli.main import main
from amq.core.errors import ConfigError
from amq.security.login import User
from amq.security.permissions import Permissions, Right
from amq_migrate import foreign
from amq_migrate.foreign import Foreign, Status, grants, load, writing
from tests.sampling import examples

FILES = Path(__file__).parent / "files"
ACTIVEMQ, ARTEMIS = FILES / "authorization.xml", FILES / "security-settings.xml"
ROLES = {"amq": ["root"], "shop": ["alice"], "warehouse": ["bob"], "audit": ["carol"], "operators": ["root", "olga"]}
R, W, A, B = Right.READ, Right.WRITE, Right.ADMIN, Right.BROWSE


def read(path: Path, roles: dict[str, list[str]] | None = None) -> Foreign:
    return foreign.read(path.read_bytes(), str(path), {}, {}, roles or {})


def permissions(found: Foreign) -> Permissions:
    assert found.permissions is not None
    return Permissions.of(found.permissions, found.path)


def granted(rules: Permissions, name: str, right: Right, users: str) -> set[str]:
    return {user for user in users.split() if rules.may(User(user), right, name)}


@pytest.mark.parametrize(
    ("name", "right", "expected"),
    [
        ("queue://other", R, "root"),
        ("queue://other", W, "root"),
        ("queue://other", A, "root"),
        ("queue://ORDERS.EU", R, "root alice bob"),  # the union of two entries
        ("queue://ORDERS.EU", W, "root alice"),
        ("queue://ORDERS", A, "root alice"),  # ">" stands for no word, too
        ("queue://ORDERS.SECRET", R, "root alice bob"),  # a narrow entry takes nothing away
        ("queue://GUEST.x", R, "root alice bob anonymous eve"),  # "*" is everybody
        ("queue://GUEST.x", W, "root anonymous"),
        ("queue://OPEN", W, "root anonymous"),  # one entry for two names
        ("queue://GUEST.x.y", R, "root"),
        ("topic://any", R, "root"),
        ("topic://any", W, ""),
        ("topic://ActiveMQ.Advisory.Queue", R, "root alice bob anonymous"),
        ("topic://ActiveMQ.Advisory.Queue", W, "alice bob root anonymous"),
        ("topic://a.x.b", R, "root"),
    ],
)
def test_entries_of_activemq_count_together(name: str, right: Right, expected: str) -> None:
    rules = permissions(read(ACTIVEMQ))
    assert granted(rules, name, right, "root alice bob anonymous eve") == set(expected.split())


def test_a_default_entry_of_activemq_counts_for_all() -> None:
    rules = permissions(read(ACTIVEMQ, {"auditors": ["ann"]}))
    names = ("queue://other", "queue://ORDERS.EU", "topic://any", "topic://ActiveMQ.Advisory.Queue")
    assert [rules.may(User("ann"), R, name) for name in names] == [True, True, True, True]
    assert not rules.may(User("ann"), W, "queue://other")


@pytest.mark.parametrize(
    ("name", "right", "expected"),
    [
        ("queue://other", R, "root"),
        ("topic://other", W, "root"),
        ("queue://other", B, "root"),
        ("queue://other", A, "root"),
        ("queue://orders.us", R, "bob carol"),  # nothing of "#": the most specific setting decides alone
        ("queue://orders.us", W, "alice"),
        ("queue://orders.us", A, ""),
        ("queue://orders.us", B, ""),
        ("topic://orders", W, "alice"),
        ("queue://orders.eu", R, "bob"),  # of two settings for the same addresses the last one counts
        ("queue://orders.eu", W, ""),
        ("queue://prices.eu", W, "root"),  # "*" alone is more specific than "#"
        ("queue://prices.eu", R, ""),
        ("queue://activemq.management", W, ""),
        ("topic://ActiveMQ.Advisory.Queue", R, ""),
    ],
)
def test_the_most_specific_setting_of_artemis_decides_alone(name: str, right: Right, expected: str) -> None:
    rules = permissions(read(ARTEMIS, ROLES))
    assert granted(rules, name, right, "root alice bob carol olga eve") == set(expected.split())


def test_administrators_of_all_queues_manage_the_broker() -> None:
    """Else the pages of the console about transactions and scheduled messages refuse the administrator."""
    entries = '<authorizationEntry {}=">" read="r" admin="admins"/><authorizationEntry queue="a" admin="few"/>'
    for kind, managers in (("queue", ["admins"]), ("topic", [])):
        inside = f"<authorizationEntries>{entries.format(kind)}</authorizationEntries>"
        plugin = f"<authorizationPlugin><map><authorizationMap>{inside}</authorizationMap></map></authorizationPlugin>"
        found = foreign.read(f"<broker><plugins>{plugin}</plugins></broker>".encode(), "a.xml", {}, {})
        assert found.permissions is not None
        assert found.permissions["broker"] == {"manage": managers}


def test_managers_of_artemis_are_those_of_its_management_address() -> None:
    rules = permissions(read(ARTEMIS, ROLES))
    assert {user for user in ("root", "olga", "alice", "bob") if rules.may_manage(User(user))} == {"root", "olga"}


def test_what_cannot_be_carried_over_is_told() -> None:
    found = read(ACTIVEMQ)
    told = {line.near.split("/")[-1]: line.told for line in found.report.unsupported()}
    assert "words with dots between" in told["authorizationEntry[a.>.b]"]
    assert "only the connection that made one consumes it" in told["tempDestinationAuthorizationEntry"]
    assert "no user has the roles auditors" in told["default"]
    found = read(ARTEMIS, ROLES)
    assert [(line.line, line.told.split(":")[0]) for line in found.report.unsupported()] == [
        (8, "add the users of the one role to the other in [roles]"),
        (25, "the setting in line 28 for the same addresses replaces it"),
        (30, 'amq does not know the permission "fly"'),
        (33, 'no role of amq can be called "*", which means everybody'),
        (38, 'the pattern "orders'),
        (
            39,
            'the pattern "a.#.b" has a # before its end, which amq does not have; less specific settings count for '
            "its addresses",
        ),
        (0, "no user has the roles replaced"),
    ]
    natural = [line.told for line in found.report.told() if line.status is Status.NATURAL]
    assert sum("no right is needed" in each for each in natural) == 3


def test_rules_of_artemis_that_are_switched_off_grant_and_deny_nothing() -> None:
    text = ARTEMIS.read_text().replace(
        "<security-settings>", "<security-enabled>false</security-enabled>\n<security-settings>"
    )
    assert foreign.read(text.encode(), "broker.xml", {}, {}).permissions is None


def test_addresses_of_hornetq_are_queues_or_topics() -> None:
    setting = '<security-setting match="jms.{}.a"><permission type="consume" roles="shop"/></security-setting>'
    both = setting.format("queue") + setting.format("topic").replace("shop", "amq")
    text = f'<configuration xmlns="urn:hornetq"><security-settings>{both}</security-settings></configuration>'
    rules = permissions(foreign.read(text.encode(), "h.xml", {}, {}, ROLES))
    assert [granted(rules, name, R, "root alice") for name in ("queue://a", "topic://a")] == [{"alice"}, {"root"}]


def test_rules_in_a_directory_are_not_read() -> None:
    text = (
        "<broker><plugins><authorizationPlugin><map><cachedLDAPAuthorizationMap/></map></authorizationPlugin>"
        "</plugins></broker>"
    )
    found = foreign.read(text.encode(), "activemq.xml", {}, {})
    assert found.permissions is None
    assert any("until then every user may do everything" in line.told for line in found.report.unsupported())


@pytest.mark.parametrize("path", [ACTIVEMQ, ARTEMIS], ids=["activemq", "artemis"])
def test_what_is_written_grants_what_was_read(path: Path) -> None:
    found = read(path, ROLES)
    assert found.permissions is not None
    text = writing.permissions_toml(found)
    assert tomllib.loads(text) == found.permissions
    for line_number, line in enumerate(text.split("\n")):
        if line.startswith(("[queues.", "[topics.")):
            assert "in line" in text.split("\n")[line_number - 1], f"{line} does not say where it comes from"


# -- commands ----------------------------------------------------------------------------------------------------------


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["config", *map(str, words)])


def test_an_import_writes_a_permissions_file_that_a_broker_can_use(tmp_path: Path) -> None:
    output, rules, roles = tmp_path / "amq.toml", tmp_path / "rules.toml", tmp_path / "artemis-roles.properties"
    roles.write_text("# roles\nshop = alice\nwarehouse=bob, \\\n  ben\naudit : carol\n! more\namq=root\n")
    done = run("import", ARTEMIS, "--output", output, "--permissions", rules, "--roles", roles)
    assert done.exit_code == 0, done.stderr
    assert 'permissionsFile = "rules.toml"' in output.read_text()
    assert rules.stat().st_mode & 0o777 == 0o640
    assert run("check", output).exit_code == 0
    assert load(str(output)).permissions_file == str(rules)
    written = Permissions.read(str(rules))
    assert granted(written, "queue://orders.us", R, "alice bob ben carol") == {"bob", "ben", "carol"}
    again = run("import", ARTEMIS, "--permissions", rules)
    assert (again.exit_code, "give another --permissions, or --force" in again.stderr) == (3, True)
    none = run("import", FILES / "backup.xml", "--permissions", tmp_path / "x")
    assert (none.exit_code, "has no rules about permissions" in none.stderr) == (3, True)
    assert "rules not written: give --permissions FILE" in run("import", ARTEMIS).stderr


def test_a_broker_that_reads_the_file_itself_obeys_its_rules() -> None:
    config = load(str(ACTIVEMQ))
    assert config.permissions_file == str(ACTIVEMQ)
    rules = read_permissions(config.permissions_file, str(ACTIVEMQ), {})
    assert granted(rules, "queue://ORDERS.EU", W, "root alice bob eve") == {"root", "alice"}
    assert run("check", ACTIVEMQ).exit_code == 0
    with pytest.raises(ConfigError, match="without rules"):
        read_permissions(str(FILES / "backup.xml"), str(FILES / "backup.xml"), {})


def test_permissions_that_cannot_be_used_are_told_by_a_check(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("[queues.a]\nreed = []\n")
    (tmp_path / "amq.toml").write_text('[security]\npermissionsFile = "rules.toml"\n')
    done = run("check", tmp_path / "amq.toml")
    assert (done.exit_code, "did you mean read?" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [("shop\n", ":1: write a role"), ("a=b\n=x", ":2: write a role"), ("a=*", '"\\*"'), ("a=\\u0041", "write a role")],
)
def test_a_file_of_roles_with_a_mistake(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        grants.read_roles(text.encode(), "roles")


# -- the semantics of both, against a second reading of them -----------------------------------------------------------

WORD = st.sampled_from("ab*")
PATTERN = st.tuples(st.lists(WORD, max_size=2), st.booleans()).map(lambda each: [*each[0], *([">"] * each[1])])
RULES = st.lists(st.tuples(PATTERN.filter(bool), st.sampled_from(("x", "y", ""))), max_size=5)
NAMES = [[*one] for one in ("a", "b", "aa", "ab", "ba", "aba", "bbb")]


def stands_for(pattern: list[str], name: list[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == ">":
        return True
    return bool(name) and pattern[0] in ("*", name[0]) and stands_for(pattern[1:], name[1:])


@given(RULES)
@settings(max_examples=examples(60))
def test_activemq_is_the_union(rules: list[tuple[list[str], str]]) -> None:
    entries = "".join(f'<authorizationEntry queue="{".".join(pattern)}" read="{role}"/>' for pattern, role in rules)
    entries = entries.replace(">.", "&gt;.").replace('>"', '&gt;"')
    inside = f"<authorizationMap><authorizationEntries>{entries}</authorizationEntries></authorizationMap>"
    text = f"<broker><authorizationPlugin><map>{inside}</map></authorizationPlugin></broker>"
    found = permissions(foreign.read(text.encode(), "a.xml", {}, {}, {"x": ["x"], "y": ["y"]}))
    for name in NAMES:
        expected = {role for pattern, role in rules if role and stands_for(pattern, name)}
        assert granted(found, "queue://" + ".".join(name), R, "x y") == expected


@given(RULES)
@settings(max_examples=examples(60))
def test_artemis_is_the_most_specific(rules: list[tuple[list[str], str]]) -> None:
    one = '<security-setting match="{}"><permission type="consume" roles="{}"/></security-setting>'
    all_of_them = "".join(one.format(".".join(pattern).replace(">", "#"), role) for pattern, role in rules)
    text = f"<configuration><core><security-settings>{all_of_them}</security-settings></core></configuration>"
    found = permissions(foreign.read(text.encode(), "a.xml", {}, {}, {"x": ["x"], "y": ["y"]}))
    last = {".".join(pattern): role for pattern, role in rules}
    for name in NAMES:
        matching = [pattern for pattern in last if stands_for(pattern.split("."), name)]
        if not matching:
            assert granted(found, "queue://" + ".".join(name), R, "x y") == set()
            continue
        # As Artemis compares them: those without "#" first, then the longer one; then the first word that is no "*".
        best = min(
            matching,
            key=lambda each: (">" in each, -len(each) if ">" in each else 0, [word == "*" for word in each.split(".")]),
        )
        ties = {last[each] for each in matching if ">" in best and ">" in each and len(each) == len(best)}
        got = granted(found, "queue://" + ".".join(name), R, "x y")
        assert got in [{role} - {""} for role in ties or {last[best]}]
