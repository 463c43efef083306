"""Which tests run in one process, and which begin first."""

from __future__ import annotations

import functools
import re
import zlib
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
SPARK: Final = "tests/spark/"
# Nothing is shared by the tests of these files but the processor: each has as many scopes.
SHARES: Final = {"tests/simulation/test_mutants.py": 6, "tests/crash/test_crash_states.py": 4}
# Files whose deep tests take longest. They begin before all others, so that none of them is left alone at the end.
# Those that wait for a JVM stand between those that compute.
LONG: Final = (
    "tests/simulation/test_seeds.py",
    "tests/spark/test_direct_kills.py",
    "tests/gateway/test_gateway_suites.py",
    "tests/spark/test_cluster_kills.py",
    "tests/simulation/test_clusters.py",
    "tests/bench/test_bench.py",
    "tests/crash/test_crash_states.py",
    "tests/spark/test_submit.py",
    "tests/simulation/test_features.py",
    "tests/console/test_console_layout.py",
    "tests/quorum/test_replica_brokers.py",
    "tests/simulation/test_mutants.py",
    "tests/spark/test_connect.py",
    "tests/sql/test_sql_brokers.py",
    "tests/sql/test_sql_locker_brokers.py",
    "tests/spark/test_demo_spark.py",
    "tests/openwire/test_jms.py",
)


def scope_of(nodeid: str) -> str:
    """What runs in one process: the tests of a file, or a share of them; and all that use the session of Spark, whose
    JVM takes seconds to start and runs faster the longer it has run."""
    path = nodeid.partition("::")[0]
    if path in SHARES:
        return f"{path} {zlib.crc32(nodeid.encode()) % SHARES[path]}"
    return SPARK if path.startswith(SPARK) and _has_session(path) else path


def rank_of(nodeid: str) -> int:
    """The lower begins first: the session of Spark, the files of `LONG`, all others."""
    path = nodeid.partition("::")[0]
    if path in LONG:
        return 1 + LONG.index(path)
    return 0 if scope_of(nodeid) == SPARK else len(LONG) + 1


@functools.cache
def has_other_levels(path: Path) -> bool:
    """Whether a test of that file may be more than quick: the file names what makes it so."""
    return re.search(r"deep|thorough|sampled|only\(|spark", path.read_text()) is not None


@functools.cache
def _has_session(path: str) -> bool:
    return re.search(r"\bspark: ", (ROOT / path).read_text()) is not None
