"""The pipelines without the command line of amq, for spark-submit: `spark-submit …/__main__.py audit --store …`.

Names, options and figures are those of `amq pipeline run`, the command for a single host. The figures are one line of
JSON, since spark-submit sends stdout and stderr of Python to one place.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from amq.core.errors import AmqError
from pyspark_amq.pipelines import NAMES, load
from pyspark_amq.pipelines.frame import command


def _show(figures: dict[str, Any], _as_json: bool) -> None:
    click.echo(json.dumps(figures))


def _epilog(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line.replace('amq pipeline run', 'spark-submit FILE')}" for line in lines)


def main() -> None:
    """Run a pipeline. The exit code is 1 if it fails."""
    group = click.Group("pipelines", commands={name: command(load(name), _epilog, _show, os.environ) for name in NAMES})
    try:
        group()
    except (AmqError, OSError) as error:
        click.echo(f"amq: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
