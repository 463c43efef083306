"""The options of `amq start` by which stores leave the cluster with a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from amq.cluster.scaling import AFTER_S, AFTER_S_MAX, ScaleDown

_OPTIONS = (
    click.option(
        "--scale-down",
        "scale_down",
        metavar="STORE",
        multiple=True,
        help="With --cluster: this store leaves the cluster with this node. When the node has stopped, and is not back "
        "in time, other nodes move all that the store holds to other stores. May be repeated.",
    ),
    click.option(
        "--scale-down-to",
        metavar="STORE",
        multiple=True,
        help="This store gets it. May be repeated. Default: all others.",
    ),
    click.option(
        "--scale-down-after",
        metavar="SECONDS",
        type=click.FloatRange(0, AFTER_S_MAX),
        help=f"How long a node that has stopped may be away before that. Default: {AFTER_S:g}.",
    ),
    click.option(
        "--scale-down-after-failure",
        metavar="SECONDS",
        type=click.FloatRange(0, AFTER_S_MAX),
        help="How long a node that was killed, or whose host failed, may be away before that. Default: no limit.",
    ),
)


def scale_down_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `command` these options, together as `scale_down`, a `ScaleDown` or None. Raises UsageError."""

    @wraps(command)
    def run(
        scale_down: tuple[str, ...],
        scale_down_to: tuple[str, ...],
        scale_down_after: float | None,
        scale_down_after_failure: float | None,
        **others: Any,
    ) -> None:
        if not scale_down and (scale_down_to, scale_down_after, scale_down_after_failure) != ((), None, None):
            raise click.UsageError(
                "--scale-down-to, --scale-down-after and --scale-down-after-failure say how stores leave: give "
                "--scale-down STORE, too"
            )
        after_s = AFTER_S if scale_down_after is None else scale_down_after
        rule = ScaleDown(scale_down, scale_down_to, after_s, scale_down_after_failure) if scale_down else None
        command(scale_down=rule, **others)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run
