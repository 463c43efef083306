"""Pipelines: jobs that are run by name, `amq pipeline run NAME` or with spark-submit. What one is says `frame`.

Invariant: nothing here imports Spark before a pipeline runs, so that a host without it can say what is missing.
"""

from __future__ import annotations

from importlib import import_module

from pyspark_amq.pipelines.frame import Pipeline

NAMES = ("ingest", "drain", "audit", "replay")


def load(name: str) -> Pipeline:
    """One of `NAMES`."""
    pipeline: Pipeline = import_module(f"pyspark_amq.pipelines.{name}").PIPELINE
    return pipeline
