"""Rules of layout that neither ruff nor import-linter knows: `python -m tests.lint`, a part of `make lint`.

Each check is a function (path in the repository, source) → complaints. tests/test_lint.py shows bad snippets to each.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("amq", "cli", "migrate", "spark", "bench", "examples", "tests", "nfs-test")
FUNCTION_LINES_MAX = 100


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
LIBRARY = "amq/ migrate/foreign/ migrate/openwire/"
BANS = (
    _ban(
        "time.time time.time_ns datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today "
        "datetime.date.today",
        LIBRARY,
        "take a Clock and ask its wall_ms()",
        "amq/doors/clock.py",
    ),
    _ban(
        "time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns",
        LIBRARY,
        "take a Clock and ask its monotonic(): the simulation has its own time",
        "amq/doors/clock.py amq/config/",  # watching a file is not a part of any history
    ),
    _ban("time.sleep", f"{LIBRARY} spark/", "wait on an Event or a Condition, so that a stop can wake you"),
    _ban(
        "open io.open os.open os.close os.read os.write os.pread os.pwrite os.fsync os.fdatasync os.sync os.stat "
        "os.fstat os.lstat os.listdir os.scandir os.walk os.mkdir os.makedirs os.link os.symlink os.unlink os.remove "
        "os.rename os.replace os.rmdir os.truncate os.ftruncate os.statvfs os.posix_fallocate os.path.exists "
        "os.path.isfile os.path.isdir os.path.getsize pathlib.Path shutil.rmtree fcntl.fcntl fcntl.flock fcntl.lockf "
        "tempfile.mkstemp",
        REPLAYED,
        "go through the Vfs that you were given: the simulation has its own file system",
        # Doors themselves, and the directory of the management socket.
        "amq/store/host.py amq/store/files/vfs.py amq/store/postgres/ amq/store/coordinated/ amq/node/management.py "
        "amq/store/replica/peer_secret.py",
    ),
    _ban(
        "uuid.uuid1 uuid.uuid4 os.urandom secrets.token_bytes secrets.token_hex",
        REPLAYED,
        "take the entropy that you were given: the simulation replays it",
    ),
    _ban(
        "os.environ os.getenv",
        f"{LIBRARY} spark/",
        "let the command line pass it in: nothing is read behind the caller's back",
        "spark/pipelines/__main__.py amq/node/process.py",  # a command line; the service manager speaks through it
    ),
    _ban(
        "gc.disable gc.enable gc.collect gc.freeze gc.unfreeze gc.set_threshold sys.setswitchinterval os.execv "
        "os._exit os.umask signal.signal",
        f"{REPLAYED} amq/transports/ amq/security/ amq/config/",
        "leave the process to its node: a member may share it with others",
        "amq/node/process.py amq/node/service.py",
    ),
    _ban(
        "logging.getLogger logging.basicConfig",
        LIBRARY,
        "use structlog.get_logger: a line has fields",
        "amq/client/",  # a guest in somebody else's process: it speaks as the host does
    ),
)
# Circles of modules that are still there: none may grow, none may come, and one that is opened leaves this list.
CIRCLES = [
    ["amq.client.aio", "amq.client.aio_consumer"],
    ["amq.client.connection", "amq.client.session"],
    ["amq.client.core", "amq.client.machine"],
]
# Calls whose last argument is how long they wait.
WAITS = frozenset(["next_frame", "receipt", "result", "settimeout", "timeout", "wait_for"])
# Names that several public classes have: the client's (the same for `await` and without), and terms of the field that
# mean the same thing at another end. None may come, and one that is given up leaves this list.
SHARED_NAMES = """
Browser Connection Consumer Event Group Link Message Producer Request Run Session State Subscribed Subscription
Transaction
"""
# Modules that name `Broker`: everything else gets the parts of it that it needs. Four of them show all of it.
NAME_BROKER_MAX = 9


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


def check_bans(path: str, source: str) -> Iterator[str]:
    aliases = import_aliases(source)
    bans = [ban for ban in BANS if ban.covers(path)]
    for node in nodes(source):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = dotted_name(node, aliases)
        for ban in bans:
            if name not in ban.names:
                continue
            if isinstance(node, ast.Name) or ast.unparse(node).partition(".")[0] in aliases:  # and no variable
                yield f"{path}:{node.lineno}: {name} is banned here: {ban.cure}"


def check_suppression(path: str, source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.Call) and dotted_name(node.func, {}).endswith("suppress"):
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


def check_patience(path: str, source: str) -> Iterator[str]:
    """What must come is waited for until tests/patience.py's deadline. Where a test says that nothing comes, in
    `pytest.raises`, or asks for what may not be there, it may wait for a shorter time."""
    if not path.startswith("tests/") or path.startswith("tests/simulation/"):
        return
    blocks = [node for node in nodes(source) if isinstance(node, ast.With)]
    raising = [block for block in blocks if any("raises(" in ast.unparse(item) for item in block.items)]
    shall_fail = {id(part) for block in raising for part in ast.walk(block)}
    for node in nodes(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and id(node) not in shall_fail:
            given = [each.value for each in node.keywords if each.arg in ("timeout", "timeout_s")]
            if node.func.attr in WAITS:
                given += node.args[-1:]
            for each in given:
                if isinstance(each, ast.Constant) and isinstance(each.value, int | float) and each.value >= 1:
                    yield f"{path}:{node.lineno}: waits for {each.value} s: a busy machine takes longer, use DEADLINE_S"


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


def shared_names(sources: Iterable[str]) -> list[str]:
    """The names that two public classes or more have, in whatever module."""
    classes = [node.name for source in sources for node in nodes(source) if isinstance(node, ast.ClassDef)]
    return sorted(name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_"))


# -- reading Python ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)  # all checks look at one file before the next: the nodes of all would fill the memory
def nodes(source: str) -> list[ast.AST]:
    """The module, and all that is in it but for `Load` and `Store`. As `ast.walk`, in half of its time."""
    found: list[ast.AST] = [ast.parse(source)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


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


# -- the whole repository ----------------------------------------------------------------------------------------------

Check = Callable[[str, str], Iterator[str]]
CHECKS: tuple[Check, ...] = (check_sizes, check_bans, check_suppression, check_sleeps, check_patience)


def _modules() -> dict[str, str]:
    """Source by dotted name of all that is installed."""
    names = {path: path.relative_to(ROOT).with_suffix("").as_posix() for path in files(".py")}
    return {
        name.removesuffix("/__init__").replace("/", "."): path.read_text()
        for path, name in names.items()
        if name.startswith(("amq/", "cli/", "migrate/", "spark/"))
    }


def rooms_without_contract(rooms: set[str], importlinter: str) -> Iterator[str]:
    contracts = tomllib.loads(importlinter)["tool"]["importlinter"]["contracts"]
    for room in sorted(rooms - {contract["name"] for contract in contracts}):
        yield f"importlinter.toml: no contract says who may import {room}"


def complaints() -> Iterator[str]:
    for path in files(".py"):
        source = path.read_text()
        for check in CHECKS:
            yield from check(path.relative_to(ROOT).as_posix(), source)
    for path in files("", ".md", ".toml", ".cfg"):
        yield from check_text(path.relative_to(ROOT).as_posix(), path.read_text())
    modules = _modules()
    if (found := list(circles(modules))) != CIRCLES:
        yield f"modules import each other in a circle: {found}, and not {CIRCLES}"
    benches = [path.read_text() for path in files(".py") if path.relative_to(ROOT).parts[0] == "bench"]
    if (shared := shared_names([*modules.values(), *benches])) != SHARED_NAMES.split():
        unlike = set(shared).symmetric_difference(SHARED_NAMES.split())
        yield f"several classes have one name, or no longer: {sorted(unlike)}; rename one, or correct SHARED_NAMES"
    knowing = [name for name, source in modules.items() if re.search(r"^ *from .* import .*\bBroker\b", source, re.M)]
    if len(knowing) != NAME_BROKER_MAX:
        yield f"{len(knowing)} modules name Broker, and not {NAME_BROKER_MAX}: {knowing}"
    rooms = {path.parent.name for path in (ROOT / "amq").glob("*/__init__.py")} | {"cli", "migrate", "spark"}
    yield from rooms_without_contract(rooms, (ROOT / "importlinter.toml").read_text())


if __name__ == "__main__":
    sys.exit("\n".join(complaints()) or None)
