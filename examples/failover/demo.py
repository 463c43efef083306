"""Runs the examples: two brokers as processes on a temporary store, kill -9 of the master when a program asks for it.

    python examples/failover/demo.py [PROGRAM …]

Exit code 0 if every program found its numbers right. No process and no file is left behind.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from amq.cli.demo_brokers import leashed
from amq.cli.demo_common import DemoGroup, Kill
from amq.core.errors import AmqError

FOLDER = Path(__file__).resolve().parent
PROGRAMS = [
    f"{case}{face}"
    for case in ("reattach", "transaction", "without_transaction", "application")
    for face in ("", "_aio")
]
CUE = "kill the master now"
WINDOW = "?reconnectWindow=10000"  # reattach: the broker keeps the session for so many milliseconds
LIMIT_S = 120.0  # a program that takes longer is ended


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: two threads talk


def play(name: str, group: DemoGroup) -> bool:
    """Run one program. Is its exit code 0, and was the master killed if it asked for that?"""
    urls = [group.url]
    if name.startswith("application"):
        urls = [broker.url for broker in group.brokers]
    elif name.startswith("reattach"):
        urls = [group.url + WINDOW]
    say(f"\n== {name}.py {' '.join(urls)}")
    kill = None
    process = subprocess.Popen(
        leashed([sys.executable, str(FOLDER / f"{name}.py"), *urls]), stdout=subprocess.PIPE, text=True
    )
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                say(f"  {line.rstrip()}")
                master = group.master
                if line.startswith(CUE) and master is not None:
                    kill = Kill(master.name)
                    group.kill(master, "as the program asks")
        code = process.wait()
    finally:
        limit.cancel()
        process.kill()
        process.wait()
    if kill is not None:
        say("the killed broker starts again, and is a slave")
        group.until(lambda: group.master is not None, "next master", group.check)
        group.follow(kill)
        wait_whole(group)
    return code == 0 and (kill is not None or name.startswith("reattach"))


def wait_whole(group: DemoGroup) -> None:
    group.until(lambda: group.is_whole, "master and slave", group.check)


def run(names: list[str]) -> int:
    failed = []
    with tempfile.TemporaryDirectory(prefix="amq-examples-") as directory:
        group = DemoGroup(2, str(Path(directory) / "store"), directory, lambda event: say(f"brokers: {event}"))
        try:
            group.start()
            wait_whole(group)
            for name in names:
                began = time.monotonic()
                if not play(name, group):
                    failed.append(name)
                say(f"== {name}.py: {'FAILED' if name in failed else 'ok'}, {time.monotonic() - began:.1f} s")
            group.stop()
        finally:
            group.end()
    say(f"\n{len(names) - len(failed)} of {len(names)} programs found their numbers right {' '.join(failed)}".rstrip())
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"default: all of {', '.join(PROGRAMS)}")
    names = [name.removesuffix(".py") for name in parser.parse_args().programs] or PROGRAMS
    unknown = sorted({*names} - {*PROGRAMS})
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the programs are {', '.join(PROGRAMS)}")
    try:
        return run(names)
    except AmqError as error:
        say(f"the brokers failed: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
