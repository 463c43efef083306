"""The check that `amq start` makes before it touches the store: the quick part of `amq doctor`.

Invariant: a broker does not use a store on which two brokers, or none, could be master, unless the operator allows it;
then every start warns about it.
"""

from __future__ import annotations

import structlog

from amq.cluster.directory import check_lone
from amq.config import BrokerConfig
from amq.core.errors import AmqError, StoreError
from amq.doctor.filesystems import ALONE_TOPIC
from amq.doctor.finding import Examination, Level
from amq.doctor.stores import examine_quickly
from amq.store.name import is_directory
from amq.store.open import check_directory

_log = structlog.get_logger("amq.process")


def refusal(config: BrokerConfig) -> AmqError | None:
    """Why the broker must not start on this store; None = it may. Logs warnings."""
    try:
        if is_directory(config.store):
            check_directory(config.store)
        if not config.placed and not config.allow_unsafe_store:
            check_lone(config.store)
        report = examine_quickly(config.store, locker=config.locker)
    except OSError as error:
        # The broker meets the same error at its first step and reports it with its cure.
        _log.info("the store cannot be examined", reason=str(error))
        return None
    except StoreError as error:
        return error
    for finding in report.of(Level.WARNING):
        if finding.topic != ALONE_TOPIC:  # a group on one host is a normal use
            _log.warning("the store could be safer or quicker", finding=str(finding))
    reasons = [str(finding) for finding in report.of(Level.UNFIT)]
    if config.allow_unsafe_store:
        _warn(reasons)
    elif reasons:
        return StoreError(_description(report, reasons), code="STORE_UNSAFE")
    return None


def _warn(reasons: list[str]) -> None:
    if reasons:
        for reason in reasons:
            _log.warning("starting on an unsafe store because allowUnsafeStore is set", reason=reason)
    else:
        _log.warning("allowUnsafeStore is set but not needed: remove it")


def _description(report: Examination, reasons: list[str]) -> str:
    return (
        f"{report.directory} is not fit to be a store: {'; '.join(reasons)}. `amq doctor {report.path}` tells more; "
        "--allow-unsafe-store starts the broker anyway, for trials"
    )
