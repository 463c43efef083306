"""pyspark_amq: Spark reads from and writes to amq as `format("amq")`. Docs: docs/spark.md.

Spark finds `DefaultSource` by itself in every top-level package whose name begins with `pyspark_`. The package loads it
on first use, so modules that need neither Spark nor Java (`pyspark_amq.options`) can be used without them.
"""

from __future__ import annotations

from typing import Any, Final

PYSPARK_MIN: Final = "4.2"


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from pyspark_amq.data_source import AmqDataSource

        return AmqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
