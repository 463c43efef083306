"""pyspark_amq_journal: lets Spark find `format("amq-journal")`, because a package can hold only one format. The format
itself is in `pyspark_amq.data_source`. Docs: docs/spark.md.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_amq.data_source import AmqJournalDataSource

        return AmqJournalDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
