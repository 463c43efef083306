"""pyspark_amq_journal: lets Spark find `format("amq-journal")`, since a package holds one format. The format is
`pyspark_amq.journal_source`; docs: docs/spark.md.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_amq.journal_source import AmqJournalDataSource

        return AmqJournalDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
