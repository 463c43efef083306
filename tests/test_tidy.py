"""The style of this repository, as tests: sizes, import directions, banned calls with their replacement.

Each check is a function (path in the repository, source) → complaints, so that it can be shown bad snippets too: the
last tests do that, for every rule.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("amq", "cli", "spark", "bench", "examples", "tests", "nfs-test")
FUNCTION_LINES_MAX = 100

# Who may import whom; docs/architecture.md says why. A name with a dot allows that one module of a room.
LEAVES = {"core", "doors"}
IMPORTS: dict[str, set[str]] = {
    "core": set(),
    "doors": set(),
    "store": LEAVES,
    "config": LEAVES | {"selectors", "store.name"},
    "security": LEAVES,
    "journal": LEAVES | {"config", "store.files.vfs"},
    "selectors": {"core"},
    "broker": LEAVES | {"journal", "security", "config", "selectors", "protocols.commands"},
    "protocols": {"core"},
    "transports": LEAVES | {"protocols", "broker", "journal", "security", "config"},
    "client": LEAVES | {"protocols", "transports"},
    "node": LEAVES | {"store", "config", "security", "journal", "broker", "protocols", "transports"},
    "management": LEAVES | {"broker", "config", "journal", "security", "selectors", "protocols.commands"},
    "console": LEAVES | {"store", "management", "security.login"},
    "maintenance": LEAVES | {"store", "config", "journal", "broker", "node"},
    "doctor": LEAVES | {"store", "config", "client", "security"},
    "cli": LEAVES
    | {"store", "config", "security", "journal", "node", "client", "protocols", "doctor", "maintenance"}
    | {"broker.events", "broker.actions", "broker.permitted", "management", "console"}
    | {"transports.doorkeeper", "transports.places"},
    "spark": LEAVES | {"client", "journal", "config", "store.epoch", "store.files.vfs", "protocols.stomp.destination"},
    "__main__": {"cli"},
    "": {"client", "core.errors"},  # amq/__init__.py: the client's names, loaded when first used
}
PROTOCOLS_BANNED_IMPORTS = {"socket", "asyncio", "os", "time", "threading", "select", "ssl", "random", "datetime"}


@dataclass(frozen=True)
class Ban:
    """Names (with what they were imported from) not to be used in files under `where`, except `doors`; and the cure."""

    names: frozenset[str]
    where: tuple[str, ...]
    cure: str
    doors: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        return path.startswith(self.where) and not path.startswith(self.doors)


def _ban(names: str, where: str, cure: str, doors: str = "") -> Ban:
    return Ban(frozenset(names.split()), tuple(where.split()), cure, tuple(doors.split()) or ("\0",))


# The simulation runs these.
REPLAYED = "amq/store/ amq/journal/ amq/broker/ amq/node/"
BANS = (
    _ban(
        "time.time time.time_ns datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today "
        "datetime.date.today",
        "amq/",
        "take a Clock and ask its wall_ms()",
        "amq/doors/clock.py",
    ),
    _ban(
        "time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns",
        "amq/",
        "take a Clock and ask its monotonic(): the simulation has its own time",
        "amq/doors/clock.py amq/config/",  # watching a file is no part of any history
    ),
    _ban("time.sleep", "amq/ spark/", "wait on an Event or a Condition, so that a stop can wake you"),
    _ban(
        "open io.open os.open os.close os.read os.write os.pread os.pwrite os.fsync os.fdatasync os.sync os.stat "
        "os.fstat os.lstat os.listdir os.scandir os.walk os.mkdir os.makedirs os.link os.symlink os.unlink os.remove "
        "os.rename os.replace os.rmdir os.truncate os.ftruncate os.statvfs os.posix_fallocate os.path.exists "
        "os.path.isfile os.path.isdir os.path.getsize pathlib.Path shutil.rmtree fcntl.fcntl fcntl.flock fcntl.lockf "
        "tempfile.mkstemp",
        REPLAYED,
        "go through the Vfs that you were given: the simulation has its own file system",
        "amq/store/host.py amq/store/files/waker.py amq/store/files/vfs.py amq/store/postgres/",  # doors themselves
    ),
    _ban(
        "uuid.uuid1 uuid.uuid4 os.urandom secrets.token_bytes secrets.token_hex",
        REPLAYED,
        "take the entropy that you were given: the simulation replays it",
    ),
    _ban(
        "random.random random.randint random.randrange random.uniform random.choice random.choices random.sample "
        "random.shuffle random.getrandbits random.randbytes random.seed random.expovariate random.gauss",
        "amq/ cli/ spark/ bench/ tests/",
        "take a random.Random, seeded where it must be replayable",
    ),
    _ban(
        "print",
        "amq/ cli/ spark/",
        "say it in the log (structlog), or on a command's output with click.echo or rich",
    ),
    _ban(
        "os.environ os.getenv",
        "amq/ spark/",
        "let the command line pass it in: nothing is read behind the caller's back",
        "spark/pipelines/__main__.py",  # a command line
    ),
    _ban(
        "logging.getLogger logging.basicConfig",
        "amq/",
        "use structlog.get_logger: a line has fields",
        "amq/client/",  # a guest in somebody else's process: it speaks as the host does
    ),
    _ban("os.system os.popen", "amq/ cli/ spark/ bench/ tests/", "use subprocess with a list of words"),
)
# Circles of modules that are still there: none may grow, none may come, and one that is opened leaves this list.
CIRCLES = [
    ["amq.client.aio", "amq.client.aio_consumer"],
    ["amq.client.connection", "amq.client.session"],
    ["amq.client.core", "amq.client.machine"],
    ["amq.config.destinations", "amq.config.schema"],
]
# Modules that name `Broker`: everything else gets the parts of it that it needs. Four of them show all of it.
NAME_BROKER_MAX = 9
SHY_WORDS = ("TO" + "DO", "FIX" + "ME", "XX" + "X")  # split, so that this file may pass its own check


# -- the checks --------------------------------------------------------------------------------------------------------


def check_sizes(path: str, source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}: split it"


def check_text(path: str, source: str) -> Iterator[str]:
    if source and not source.endswith("\n"):
        yield f"{path}: does not end with a line end"
    for number, line in enumerate(source.split("\n"), start=1):
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"
        if "\t" in line and not path.endswith("Makefile"):
            yield f"{path}:{number}: a tab: write \\t or blanks"
        if path.endswith(".py"):
            for word in SHY_WORDS:
                if word in line:
                    yield f"{path}:{number}: {word}: do it, or file an issue"


def check_docstring(path: str, source: str) -> Iterator[str]:
    if source.strip() and not ast.get_docstring(nodes(source)[0]):
        yield f"{path}: no module docstring: say what this is and which invariant it keeps"


def check_imports(path: str, source: str) -> Iterator[str]:
    """Import directions between the rooms; `bench` and `tests` look from outside and may import anything."""
    room = room_of(path)
    for line, module in imported_modules(source):
        top = module.partition(".")[0]
        if path.startswith(("amq/", "cli/")) and top in ("cli", "spark", "tests", "bench"):
            yield f"{path}:{line}: imports {module}: nothing that is installed imports that (cli is amq.cli)"
        if path.startswith("amq/") and top.startswith("pyspark"):
            yield f"{path}:{line}: imports {module}: a broker host has no Spark; cli may, in the commands that need it"
        if path.startswith("amq/protocols/") and top in PROTOCOLS_BANNED_IMPORTS:
            yield f"{path}:{line}: imports {module}: protocols turn bytes into commands and do nothing else"
        if room is None or top != "amq":
            continue
        inner = module.removeprefix("amq").removeprefix(".")
        target = inner.partition(".")[0]
        if target in (room, ""):
            continue
        if not any(inner == allowed or inner.startswith(allowed + ".") for allowed in IMPORTS.get(room, ())):
            yield f"{path}:{line}: {room or 'amq'} imports {module}: see the table in docs/architecture.md"


def check_bans(path: str, source: str) -> Iterator[str]:
    aliases = import_aliases(source)
    bans = [ban for ban in BANS if ban.covers(path)]
    scripts = {id(part) for node in nodes(source) if is_main_block(node) for part in ast.walk(node)}
    for node in nodes(source):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = dotted_name(node, aliases)
        for ban in bans:
            if name not in ban.names or (name == "print" and id(node) in scripts):
                continue
            if isinstance(node, ast.Name) or ast.unparse(node).partition(".")[0] in aliases:  # and no variable
                yield f"{path}:{node.lineno}: {name} is banned here: {ban.cure}"


def check_handlers(path: str, source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            if node.type is None:
                yield f"{path}:{node.lineno}: bare except: name what you expect"
            elif broad and all(isinstance(part, ast.Pass | ast.Continue) for part in node.body):
                yield f"{path}:{node.lineno}: swallows everything: name what you expect and say why"
        elif isinstance(node, ast.Call) and dotted_name(node.func, {}).endswith("suppress"):
            for argument in node.args:
                if dotted_name(argument, {}) in ("Exception", "BaseException"):
                    yield f"{path}:{node.lineno}: suppresses everything: name what you expect and say why"


def check_sleeps(path: str, source: str) -> Iterator[str]:
    """Tests never sleep and hope. Between two looks at a condition, in a `while`, they may pause."""
    if not path.startswith("tests/") or path.startswith("tests/simulation/"):  # where a sleep takes no time
        return
    aliases = import_aliases(source)
    polls = {id(part) for node in nodes(source) if isinstance(node, ast.While) for part in ast.walk(node)}
    for node in nodes(source):
        if isinstance(node, ast.Call) and dotted_name(node.func, aliases) in ("time.sleep", "asyncio.sleep"):
            lets_others_run = [ast.unparse(argument) for argument in node.args] == ["0"]
            if id(node) not in polls and not lets_others_run:
                yield f"{path}:{node.lineno}: sleeps and hopes: wait for an Event, a Condition, a line of a log"


def circles(sources: dict[str, str]) -> Iterator[list[str]]:
    """Modules that import each other, directly or not, also where only a type checker sees it. `sources`: by module."""
    imports: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = imports[module] = set[str]()
        for node in nodes(source):
            if isinstance(node, ast.ImportFrom):
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                names |= {found if found in sources else str(node.module) for found in inner.values()}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        names &= sources.keys() - {module}
    reached = {module: _reached(module, imports) for module in sources}
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in sources}
    yield from sorted(sorted(circle) for circle in found if len(circle) > 1)


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    found, to_do = set[str](), [module]
    while to_do:
        new = imports[to_do.pop()] - found
        found |= new
        to_do += new
    return found


# -- reading Python ----------------------------------------------------------------------------------------------------


def room_of(path: str) -> str | None:
    """The room of `IMPORTS` in which a file lies, "" for amq/__init__.py; None = not a part of the house."""
    first, *rest = path.removesuffix(".py").split("/")
    if first in ("cli", "spark"):
        return first
    if first != "amq":
        return None
    return "" if rest == ["__init__"] else rest[0]


@functools.lru_cache(maxsize=1)  # all checks look at one file before the next: the nodes of all would fill the memory
def nodes(source: str) -> list[ast.AST]:
    """The module, and all that stands in it."""
    return [*ast.walk(ast.parse(source))]


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """(line, module), also inside functions. `from amq import broker` counts as amq.broker."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where things come from"
            module = node.module or ""
            if "." in module:
                yield node.lineno, module
            else:
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}" if module == "amq" else module


def import_aliases(source: str) -> dict[str, str]:
    """{name in this file: dotted name that it stands for}."""
    aliases: dict[str, str] = {}
    for node in nodes(source):
        if isinstance(node, ast.Import):
            tops = {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
            aliases.update({alias.asname: alias.name for alias in node.names if alias.asname})
            aliases.update(zip(tops, tops, strict=True))
        elif isinstance(node, ast.ImportFrom):
            aliases.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return aliases


def is_main_block(node: ast.AST) -> bool:
    """`if __name__ == "__main__":`, where a module is a script."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def dotted_name(node: ast.AST, aliases: dict[str, str]) -> str:
    """`a.b.c` of a name or an attribute of a name, with the first part as imported; "" of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(aliases.get(node.id, node.id))
    return ".".join(reversed(parts))


def files(*suffixes: str) -> list[Path]:
    """The repository's files with these suffixes, without what tools leave behind."""
    found = [ROOT / "Makefile"] if "" in suffixes else []
    for folder in (*CODE, "docs", "conf"):
        found += [p for p in sorted((ROOT / folder).rglob("*")) if p.is_file() and p.suffix in suffixes and p.suffix]
    return [*found, *(p for p in sorted(ROOT.glob("*")) if p.is_file() and p.suffix in suffixes and p.suffix)]


# -- the tests ---------------------------------------------------------------------------------------------------------

Check = Callable[[str, str], Iterator[str]]
CHECKS: tuple[Check, ...] = (
    check_sizes,
    check_text,
    check_docstring,
    check_imports,
    check_bans,
    check_handlers,
    check_sleeps,
)


def test_python() -> None:
    complaints: list[str] = []
    for path in files(".py"):
        source = path.read_text()
        for check in CHECKS:
            complaints += check(path.relative_to(ROOT).as_posix(), source)
    assert not complaints, "\n" + "\n".join(complaints)


def _modules() -> dict[str, str]:
    """Source by dotted name of all that is installed."""
    names = {path: path.relative_to(ROOT).with_suffix("").as_posix() for path in files(".py")}
    return {
        name.removesuffix("/__init__").replace("/", "."): path.read_text()
        for path, name in names.items()
        if name.startswith(("amq/", "cli/", "spark/"))
    }


def test_modules_form_no_circle() -> None:
    assert list(circles(_modules())) == CIRCLES


def test_few_modules_know_the_whole_broker() -> None:
    found = [name for name, source in _modules().items() if re.search(r"^ *from .* import .*\bBroker\b", source, re.M)]
    assert len(found) == NAME_BROKER_MAX, found


def test_a_circle_is_seen() -> None:
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import B\n"
    assert list(circles({"a.a": hidden, "a.b": "from a.c import C\n", "a.c": "import a.a\n", "a.d": hidden})) == [
        ["a.a", "a.b", "a.c"]
    ]


def test_other_text() -> None:
    complaints: list[str] = []
    for path in files("", ".md", ".toml", ".cfg"):
        complaints += check_text(path.relative_to(ROOT).as_posix(), path.read_text())
    assert not complaints, "\n" + "\n".join(complaints)


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(path.relative_to(ROOT).as_posix()) for path in files(".py")} - {None}
    assert rooms <= set(IMPORTS), f"add to IMPORTS and docs/architecture.md: {rooms - set(IMPORTS)}"


BAD = [
    (check_sizes, "tests/a.py", "def f():\n" + "    x = 1\n" * 100),
    (check_text, "amq/a.py", "x = 1 \n"),
    (check_text, "amq/a.py", "x = 1"),
    (check_text, "amq/a.py", "\tx = 1\n"),
    (check_text, "bench/a.py", f"# {SHY_WORDS[0]}: later\n"),
    (check_docstring, "amq/a.py", "x = 1\n"),
    (check_imports, "amq/journal/a.py", "from amq.store import lease\n"),
    (check_imports, "amq/broker/a.py", "import amq.protocols.stomp.frame\n"),
    (check_imports, "amq/doors/clock.py", "from amq import errors\n"),
    (check_imports, "amq/node/member.py", "def f():\n    from amq import client\n"),
    (check_imports, "amq/broker/a.py", "import cli\n"),
    (check_imports, "amq/node/mastership.py", "import tests.fakes\n"),
    (check_imports, "amq/node/mastership.py", "from pyspark_amq import options\n"),
    (check_bans, "spark/a.py", "import os\nos.environ['X']\n"),
    (check_imports, "amq/protocols/a.py", "import asyncio\n"),
    (check_imports, "amq/protocols/stomp/a.py", "from os import path\n"),
    (check_bans, "amq/broker/a.py", "import time\nx = time.time()\n"),
    (check_bans, "amq/broker/a.py", "from time import time as now\nx = now()\n"),
    (check_bans, "amq/a.py", "from datetime import datetime\nx = datetime.now()\n"),
    (check_bans, "amq/a.py", "import datetime\nx = datetime.datetime.now(None)\n"),
    (check_bans, "amq/a.py", "import time\nclock = time.monotonic\n"),
    (check_bans, "amq/a.py", "import time\ntime.sleep(1)\n"),
    (check_bans, "amq/journal/a.py", "import os\nos.fsync(1)\n"),
    (check_bans, "amq/store/a.py", "from os import rename\nrename('a', 'b')\n"),
    (check_bans, "amq/broker/a.py", "with open('x') as f:\n    pass\n"),
    (check_bans, "amq/a.py", "print('x')\n"),
    (check_bans, "tests/a.py", "import random\nrandom.choice([1])\n"),
    (check_bans, "amq/journal/a.py", "import uuid\nuuid.uuid4()\n"),
    (check_bans, "amq/a.py", "import os\nos.environ['X']\n"),
    (check_bans, "amq/a.py", "import logging\nlogging.getLogger()\n"),
    (check_bans, "cli/a.py", "import os\nos.system('x')\n"),
    (check_handlers, "amq/a.py", "try:\n    x = 1\nexcept:\n    raise\n"),
    (check_handlers, "amq/a.py", "try:\n    x = 1\nexcept Exception:\n    pass\n"),
    (check_handlers, "amq/a.py", "from contextlib import suppress\nwith suppress(Exception):\n    x = 1\n"),
    (check_sleeps, "tests/a.py", "import time\ntime.sleep(1)\n"),
    (check_sleeps, "tests/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n"),
]
GOOD = [
    (check_sizes, "amq/a.py", "def f():\n" + "    x = 1\n" * 99),
    (check_imports, "amq/broker/a.py", "from amq.protocols.commands import Send\nfrom amq.broker import queue\n"),
    (check_imports, "cli/a.py", "import amq\nfrom amq.cli import exits\nfrom amq.node.member import BrokerService\n"),
    (check_imports, "cli/a.py", "from pyspark_amq.pipelines import load\n"),
    (check_bans, "spark/pipelines/__main__.py", "import os\nos.environ['X']\n"),
    (check_imports, "tests/a.py", "import amq.broker, bench.wire, asyncio\n"),
    (check_bans, "amq/doors/clock.py", "import time\nnow = time.monotonic\n"),
    (check_bans, "amq/broker/a.py", "def f(clock, vfs):\n    clock.time()\n    vfs.open('x', 0)\n"),
    (check_bans, "amq/a.py", "if __name__ == '__main__':\n    print('x')\n"),
    (check_bans, "bench/a.py", "import time, random\ntime.sleep(1)\nrandom.Random(1).choice([1])\n"),
    (check_bans, "tests/a.py", "from random import Random\nrandom = Random(1)\n"),
    (check_bans, "tests/a.py", "def f(random):\n    random.choice([1])\n"),
    (check_handlers, "amq/a.py", "try:\n    x = 1\nexcept OSError:\n    pass\nexcept Exception as e:\n    log(e)\n"),
    (check_sleeps, "tests/a.py", "import time\nwhile not f():\n    time.sleep(0.01)\n"),
    (check_sleeps, "tests/a.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n"),
]


@pytest.mark.parametrize(("check", "path", "source"), BAD)
def test_bad_code_is_found(check: Check, path: str, source: str) -> None:
    assert len(list(check(path, source))) == 1


@pytest.mark.parametrize(("check", "path", "source"), GOOD)
def test_good_code_is_not(check: Check, path: str, source: str) -> None:
    assert not list(check(path, source))
