"""Python processes of Spark, in which this package runs: planners, and workers that run one task after the other."""

from __future__ import annotations

import gc
import sys

_frozen = 0  # modules that were loaded at the last `spare_modules`


def spare_modules() -> None:
    """Exempt the modules of this process from garbage collection. Spark runs a full collection after each task and each
    planning; it took 15 to 35 ms, nearly all of it for modules, which never become garbage. Call it before a task makes
    large objects. It does nothing outside Spark's processes, and where no module came since the last call."""
    global _frozen
    if len(sys.modules) > _frozen and _is_of_spark():
        _frozen = len(sys.modules)
        gc.freeze()


def _is_of_spark() -> bool:
    """Did Spark start this process, as `python -m pyspark.…`?"""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
