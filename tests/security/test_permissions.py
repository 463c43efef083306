"""The permissions file: what it grants, what it does not, and how a wrong one is reported."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.destination import QUEUE_SCHEME, TOPIC_SCHEME, matches, pattern_words
from amq.core.errors import ConfigError
from amq.security import permissions
from amq.security.login import User
from amq.security.permissions import Entry, Permissions, Right

FILE = """
[roles]
shop = ["alice", "web"]
warehouse = ["bob"]
staff = ["alice", "bob"]
guests = ["*"]

[queues.">"]
admin = ["staff"]

[queues."orders.>"]
read = ["warehouse"]
write = ["shop"]

[queues."orders.secret"]
only = true
read = ["shop"]

[topics."prices.*"]
read = ["*"]
browse = ["guests"]

[topics.">"]
read = ["warehouse"]

[broker]
manage = ["warehouse"]
"""


@pytest.fixture
def rules(tmp_path: Path) -> Permissions:
    path = tmp_path / "permissions.toml"
    path.write_text(FILE)
    return Permissions.read(str(path))


@pytest.mark.parametrize(
    ("user", "right", "name", "granted"),
    [
        ("alice", Right.WRITE, "queue://orders.eu", True),
        ("alice", Right.WRITE, "queue://orders", True),  # ">" stands for no word, too
        ("alice", Right.READ, "queue://orders.eu", False),
        ("bob", Right.READ, "queue://orders.eu", True),
        ("bob", Right.READ, "queue://orders.secret", False),  # the entry with `only` decides alone
        ("bob", Right.ADMIN, "queue://orders.secret", False),
        ("alice", Right.READ, "queue://orders.secret", True),
        ("bob", Right.ADMIN, "queue://orders.eu", True),  # by the entry of all queues: entries count together
        ("eve", Right.READ, "queue://orders.eu", False),
        ("eve", Right.READ, "topic://prices.eu", True),
        ("eve", Right.BROWSE, "topic://prices.eu", True),
        ("eve", Right.READ, "topic://prices.eu.berlin", False),
        ("eve", Right.READ, "queue://prices.eu", False),  # an entry is of queues or of topics
        ("bob", Right.READ, "topic://ActiveMQ.Advisory.Queue", False),  # these tell of all destinations
        ("bob", Right.READ, "topic://anything", True),
        ("bob", Right.READ, "temp-queue://1-2.x", False),
    ],
)
def test_entries_count_together_unless_one_says_only(
    rules: Permissions, user: str, right: Right, name: str, granted: bool
) -> None:
    for _ in range(2):  # the second answer is remembered
        assert rules.may(User(user), right, name) is granted


ORDER = """[roles]
eu = ["eve"]
[queues."*.eu"]
read = ["eu"]
only = true
[queues."orders.>"]
read = ["*"]
only = true
"""


def test_the_first_word_that_differs_decides_and_a_changed_order_is_told(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(ORDER)
    rules = Permissions.read(str(path))
    assert rules.may(User("alice"), Right.READ, "queue://orders.eu")  # 0.1 asked *.eu first
    [warning] = rules.warnings
    assert warning.startswith(f'{path}: for names that match both queues."orders.>" and queues."*.eu" the first one')
    assert "queue://orders.eu with only = true" in warning
    path.write_text(ORDER + '[queues."orders.eu"]\nread = ["eu"]\nonly = true\n')
    rules = Permissions.read(str(path))
    assert not rules.warnings
    assert not rules.may(User("alice"), Right.READ, "queue://orders.eu")


def test_warnings_of_the_order_are_few(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    one = '[queues."*.{0}"]\nread = ["a"]\nonly = true\n[queues."{0}.>"]\nwrite = ["b"]\nonly = true\n'
    path.write_text('[roles]\na = ["x"]\nb = ["y"]\n' + "".join(one.format(f"n{number}") for number in range(100)))
    assert len(Permissions.read(str(path)).warnings) == permissions.WARNINGS_MAX


def test_manage_is_of_the_broker(rules: Permissions) -> None:
    assert [rules.may_manage(User(user)) for user in ("alice", "bob", "eve")] == [False, True, False]


def test_what_is_remembered_is_bounded(rules: Permissions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "REMEMBERED_MAX", 10)
    for number in range(50):
        rules.may(User(f"user{number}"), Right.READ, f"queue://{number}")
        rules.may(User("eve"), Right.READ, "queue://" + "n" * 300 + str(number))
    assert len(rules._remembered) <= 10
    assert len(rules._roles_of) <= 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rolls]\n", '"rolls" is unknown; did you mean roles\\?'),
        ("[queues.a]\nreed = []\n", '"reed" is unknown; did you mean read\\?'),
        ('[queues.a]\nread = ["shop"]\n', 'the role "shop" is not in \\[roles\\]: add it there'),
        ('[roles]\nshop = []\n[queues.a]\nread = ["shp"]\n', "did you mean shop"),
        ('[queues.a]\nread = "shop"\n', "write a list of names"),
        ("[queues.a]\nread = [1]\n", "write names in quotes"),
        ('[queues.a]\nonly = "yes"\n', "write true or false"),
        ("[queues]\na = 1\n", "write a table"),
        ('[queues."a.>.b"]\n', 'a last ">"'),
        ('[queues."a..b"]\n', "words with dots between"),
        ('[roles]\n"*" = []\n', "stands for everybody already"),
        ("[broker]\nread = []\n", '"read" is unknown'),
        ("roles = 1\n", "write a table"),
        ("[queues.a\n", "at line 1"),
        ("x = " + "[" * 5000, "nested too deeply|at line"),
    ],
)
def test_a_mistake_is_told_with_the_cure(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as raised:
        Permissions.read(str(path))
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[roles]\na = ["x"]\n\n[queues."q.>"]\nread = ["a"]\nwrite = ["b"]\n', 6),
        ('[roles]\n\na = "x"\n', 3),
        ('[topics."a.b"]\nread = ["*"]\n[topics."b.c"]\nreed = ["*"]\n', 4),
        ('\n[queues."a..b"]\n', 2),
        ("[roles]\n[broker]\nmanage = 5\n", 3),
        ('queues = {"a.b" = {read = ["b"]}}\n', 1),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        Permissions.read(str(path))
    assert str(raised.value).startswith(f"{path}:{line}: ")


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot read the permissions"):
        Permissions.read(str(tmp_path / "absent"))
    path = tmp_path / "permissions.toml"
    path.write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError):
        Permissions.read(str(path))
    path.write_text("")
    path.chmod(0o666)
    assert "chmod 640" in Permissions.read(str(path)).warnings[0]
    monkeypatch.setattr(permissions, "ENTRIES_MAX", 1)
    path.write_text("[queues.a]\n[queues.b]\n")
    with pytest.raises(ConfigError, match="more than 1"):
        Permissions.read(str(path))


WORDS = st.lists(st.sampled_from(["a", "b", "ActiveMQ", "*"]), min_size=1, max_size=3)
PATTERNS = st.tuples(WORDS, st.booleans()).map(lambda each: ".".join([*each[0], *([">"] * each[1])]))
NAMES = [".".join(words) for count in (1, 2, 3, 4) for words in product(("a", "b", "c", "ActiveMQ"), repeat=count)]


ENTRIES = st.lists(st.tuples(PATTERNS, st.booleans(), st.booleans()), max_size=4)


def entry(scheme: str, pattern: str, grants: bool, only: bool) -> Entry:
    return Entry(scheme, pattern_words(pattern), {Right.READ: frozenset({"*"} if grants else ())}, only)


@given(st.sampled_from([QUEUE_SCHEME, TOPIC_SCHEME]), ENTRIES, PATTERNS)
def test_a_pattern_is_judged_as_the_names_that_it_stands_for(
    scheme: str, entries: list[tuple[str, bool, bool]], pattern: str
) -> None:
    rules = Permissions([entry(scheme, *each) for each in entries], {})
    words = pattern_words(pattern)
    named = [name for name in NAMES if matches(words, name.split("."))]
    if words[0] != "ActiveMQ" and scheme == TOPIC_SCHEME:  # no subscription to such a pattern gets advisories
        named = [name for name in named if not name.startswith("ActiveMQ")]
    granted = [rules.may(User("eve"), Right.READ, scheme + name) for name in named]
    if rules.may_all(User("eve"), Right.READ, scheme, words):
        assert all(granted)
    if any(granted):
        assert rules.may_some(User("eve"), Right.READ, scheme, words)


def test_a_pattern_of_queues_stands_for_the_shared_dead_letter_queue() -> None:
    """Only topics have advisories: `ActiveMQ.DLQ` is a queue like others."""
    every = [entry(scheme, ">", True, False) for scheme in (QUEUE_SCHEME, TOPIC_SCHEME)]
    rules, eve = Permissions(every, {}), User("eve")
    assert rules.may(eve, Right.READ, "queue://ActiveMQ.DLQ")
    assert rules.may_some(eve, Right.READ, QUEUE_SCHEME, ("ActiveMQ", "DLQ"))
    assert rules.may_all(eve, Right.READ, QUEUE_SCHEME, ("ActiveMQ", "DLQ"))
    assert not rules.may(eve, Right.READ, "topic://ActiveMQ.Advisory.Queue")
