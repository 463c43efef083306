"""Pipelines: jobs that users run by name, with `amq pipeline run NAME` or spark-submit. `frame` declares them.

Invariant: no module here imports Spark before a pipeline runs, so a host without Spark can name the missing package.
"""

from __future__ import annotations

from importlib import import_module

from pyspark_amq.pipelines.frame import Pipeline

NAMES = ("ingest", "drain", "audit", "replay")


def load(name: str) -> Pipeline:
    """The pipeline of that name, one of `NAMES`."""
    pipeline: Pipeline = import_module(f"pyspark_amq.pipelines.{name}").PIPELINE
    return pipeline
