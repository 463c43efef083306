"""What Spark imports when it looks for formats, where a module is missing: other formats stay, and what is missing is
named when the format is used.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.patience import DEADLINE_S

pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")

from pyspark_amq.pipelines import frame

PROGRAM = """
import json, pickle, sys
import pyspark.sql.datasource
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
import pyspark_amq, pyspark_amq_journal
told = {}
stream = {"url": "stomp://a:1", "destination": "/queue/a", "subscription": "c"}
formats = ((pyspark_amq.DefaultSource, stream), (pyspark_amq_journal.DefaultSource, {"path": "/nowhere"}))
for source, given in formats:
    source = pickle.loads(pickle.dumps(source))
    made = source(given)
    try:
        schema = made.schema()
        told[source.name()] = ""
        if source.name() == "amq":
            made.streamReader(schema).initialOffset()  # the first call of a query says what is wrong
        else:
            made.reader(schema)
    except ImportError as error:
        told[source.name()] = str(error)
print(json.dumps(told))
"""


def told(*missing: str) -> dict[str, str]:
    """What each format says, "" = nothing, in a Python without the modules `missing`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(missing)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_nothing_but_pyarrow_is_needed() -> None:
    assert told("structlog", "portalocker", "click", "watchdog") == {"amq": "", "amq-journal": ""}


def test_the_python_processes_of_a_query_import_nothing_of_a_broker() -> None:
    """Spark starts several for each query, and waits for each."""
    names = ("options", "messages", "source", "sink", "batch", "journal_source")
    imports = "".join(f"import pyspark_amq.{name}\n" for name in names)
    rooms = "print(sorted({'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('amq.')}))"
    program = f"import sys\n{imports}{rooms}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    found = set(ast.literal_eval(done.stdout))
    assert "amq.client" in found
    assert found.isdisjoint({"amq.config", "amq.selectors", "amq.broker", "amq.security", "amq.node"})


def test_the_process_that_starts_with_each_query_imports_nothing_of_tasks() -> None:
    """Spark starts it anew for each stream, and the query waits for it."""
    program = (
        "import sys, pyspark_amq.source; print(sorted(n for n in sys.modules if n.startswith(('amq', 'pyspark'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    found = set(ast.literal_eval(done.stdout))
    assert "amq.client.leases" in found
    assert not {name for name in found if name.startswith(("amq.journal", "amq.store", "amq.selectors"))}
    unneeded = ("tasks", "direct", "records", "journal", "columns", "staging", "sink", "batch")
    assert found.isdisjoint(f"pyspark_amq.{name}" for name in unneeded)


def test_what_is_missing_is_named() -> None:
    found = told("pyarrow")
    assert found.keys() == {"amq", "amq-journal"}
    for text in found.values():
        assert "needs the module 'pyarrow'" in text
        assert sys.executable in text
        assert "pip install pyarrow, for the Python of the driver and of every executor" in text


def test_an_older_pyspark_is_told_which_one_is_needed() -> None:
    """4.1 has no pyspark.sql.streaming.datasource; what it has serves the journal."""
    found = told("pyspark.sql.streaming.datasource")
    assert "format amq needs PySpark 4.2 or later, this is 4." in found["amq"]
    assert "pip install 'pyspark>=4.2'" in found["amq"]
    assert found["amq-journal"] == ""


@pytest.mark.parametrize("package", ["pyspark_amq", "pyspark_amq_journal"])
def test_pyspark_3_is_told_which_one_is_needed(package: str) -> None:
    program = f"import sys; sys.modules['pyspark.sql.datasource'] = None; import {package}; {package}.DefaultSource"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert "formats amq and amq-journal need PySpark 4.2 or later, this is 4." in done.stderr


def test_a_pipeline_of_an_older_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    with pytest.raises(frame.PipelineError, match=r"need PySpark 4.2 or later, this is 4.1.0: pip install"):
        frame.need_spark({"JAVA_HOME": "/usr"})
