"""Builds the source distribution and the wheel, installs them into clean environments, and uses them from outside the
checkout: `python -m tests.packages`. It needs the package index, which the rest of the tests do not.

Invariant: nothing of the checkout is on the path of what is tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
HOUSES = {
    "amq": "amq",
    "cli": "amq/cli",
    "migrate": "amq_migrate",
    "spark": "pyspark_amq",
}  # folder → where the wheel has it
JOURNAL = "pyspark_amq/pyspark_amq_journal", "pyspark_amq_journal"  # and this one stands beside
MINORS = range(11, 20)
DISCOVERY = """
import importlib, pkgutil, subprocess, sys
from pyspark.sql import SparkSession
import pyspark_amq
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for name in ("amq", "amq-journal"):
    try:
        spark.read.format(name).load().count()
    except Exception as error:
        assert "DATA_SOURCE_NOT_FOUND" not in str(error), error
        assert "OptionError" in str(error), error
        print(name, "is found by Spark")
    else:
        raise AssertionError("without options it must be refused")
for package in (pyspark_amq, importlib.import_module("pyspark_amq_journal")):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
where = "stomp://127.0.0.1:" + sys.argv[1]
broker = subprocess.Popen([sys.executable, "-m", "amq", "start", "--store", "store", "--transport", where])
try:
    rows = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("amq").mode("append").options(url=f"failover:({where})", destination="/queue/rows").save()
    kept = spark.read.format("amq-journal").option("destination", "/queue/rows").load("store").count()
    assert kept == 1000, kept
finally:
    broker.terminate()
assert broker.wait() == 0
print("1000 rows are kept")
"""


def main() -> int:
    directory = Path(tempfile.mkdtemp(prefix="amq-packages."))
    try:
        wheel = build(directory / "dist")
        check_names(wheel)
        tries: list[tuple[str, Callable[[], None]]] = [
            ("the wheel with [spark] installs and runs", partial(try_spark, wheel, directory)),
            *(
                (f"{version_of(python)}: the wheel installs and runs", partial(try_bare, python, wheel, directory))
                for python in interpreters()
            ),
        ]
        with ThreadPoolExecutor(2) as pool:  # the longest, which is first, takes as long as all others
            for done in [pool.submit(told, *each) for each in tries]:
                done.result()
    finally:
        shutil.rmtree(directory)
    return 0


def told(what: str, trial: Callable[[], None]) -> None:
    """Raises SystemExit where the trial fails."""
    began_s = time.monotonic()
    trial()
    say(f"{what}, {time.monotonic() - began_s:.0f} s")


def build(directory: Path) -> Path:
    """The wheel. It is built from the source distribution, not from the checkout: so that one can be installed, too."""
    run(sys.executable, "-m", "build", "--outdir", directory, ROOT)
    [source], [wheel] = directory.glob("*.tar.gz"), directory.glob("*.whl")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    examples = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py")]
    assert examples
    for name in ("README.md", "pyproject.toml", "setup.cfg", *examples):
        assert name in names, f"{source.name} lacks {name}"
    return wheel


def check_names(wheel: Path) -> None:
    """Each module of the checkout is in the wheel, and nothing but them. A new folder must be in setup.cfg."""
    wanted = set()
    for folder, place in HOUSES.items():
        for path in (ROOT / folder).rglob("*.py"):
            name = f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
            wanted.add(name.removeprefix("pyspark_amq/") if name.startswith(JOURNAL) else name)
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted.add("amq/py.typed")
    for folder in ("static", "templates"):
        wanted |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "amq/console" / folder).iterdir()}
    assert wanted == found, f"not in setup.cfg, or not of the checkout: {sorted(wanted ^ found)}"


def interpreters() -> Iterator[str]:
    """One of each version from 3.11 on that this machine has, this one first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = [f"python3.{minor}" for minor in MINORS]
    seen = set()
    for python in [sys._base_executable, *on_path, *map(str, sorted(pyenv.glob("versions/*/bin/python3")))]:
        path = shutil.which(python)
        if path is None or (version := version_of(path)) in seen or not version:
            continue
        seen.add(version)
        done = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False)
        if done.returncode:
            say(f"{version} is left out: it has no venv (Debian, Ubuntu: apt-get install python{version}-venv)")
        else:
            yield path


def version_of(python: str) -> str:
    """As "3.11"; "" = older, or no Python."""
    ask = "import sys; print(*sys.version_info[:2], sep='.') if sys.version_info >= (3, 11) else None"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.strip()


def try_bare(python: str, wheel: Path, directory: Path) -> None:
    place = directory / f"bare-{version_of(python)}"
    bin = install(python, place, str(wheel))
    ask = "import amq, sys; print(amq.__file__); import amq.client, amq.client.aio, amq.node.member"
    assert run(bin / "python", "-c", ask, cwd=place).startswith(str(place))
    assert "amq start" in run(bin / "amq", "help", "start", cwd=place)
    assert "_AMQ_COMPLETE" in run(bin / "amq", "completion", "bash", cwd=place)
    run(bin / "amq", "demo", "--kills", "1", "--json", cwd=place)


def try_spark(wheel: Path, directory: Path) -> None:
    """As in an activated environment: Spark starts the `python3` of PATH. What survives kills is not asked here."""
    place = directory / "spark"
    bin = install(sys._base_executable, place, f"{wheel}[spark]")
    said = run(bin / "python", "-c", DISCOVERY, free_port(), cwd=place)
    assert "amq is found by Spark\namq-journal is found by Spark" in said, said
    assert said.endswith("1000 rows are kept\n"), said


def install(python: str, place: Path, what: str) -> Path:
    """The bin/ of a new environment with `what`. A pip of its own took a fifth of the time;
    compiling what nothing imports took more."""
    bin = place / "bin"
    run(python, "-m", "venv", "--without-pip", place)
    pip = sys.executable, "-m", "pip", "--python", bin / "python", "install", "--no-compile"
    run(*pip, "--quiet", "--disable-pip-version-check", what, cwd=place)
    return bin


def run(*words: object, cwd: Path = ROOT) -> str:
    """Its output. What it says is shown where it fails."""
    command = [str(word) for word in words]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    env["PYTHONDONTWRITEBYTECODE"] = ""  # what is imported is compiled once
    env["PATH"] = f"{Path(command[0]).parent}:{env['PATH']}"
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def say(line: str) -> None:
    sys.stdout.write(f"packages: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
