"""`amq permissions explain` says whether a user may do something, and which lines of the permissions file decide it.

It asks the rules that a broker asks, with the names that clients write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from amq.broker.actions import Action
from amq.broker.permitted import FileRules
from amq.cli import exits
from amq.cli.output import examples, json_option, print_json
from amq.core.destination import parts
from amq.core.errors import ProtocolError
from amq.protocols.stomp.destination import full_name
from amq.security.explained import AskedEntry, ExplainedPermissions
from amq.security.login import User

# Those that the file alone decides, and how they are written here.
ACTIONS: Final = {
    action.name.lower().replace("_", "-"): action
    for action in (
        Action.SEND,
        Action.CONSUME,
        Action.BROWSE,
        Action.CREATE_DURABLE,
        Action.LEASE,
        Action.READ_STORE,
        Action.VIEW,
        Action.DELETE,
        Action.ADMINISTER,
        Action.MANAGE,
        Action.MANAGE_SCHEDULE,
        Action.PREPARE_BATCH,
    )
}
_OF_BROKER: Final = (Action.MANAGE, Action.MANAGE_SCHEDULE)
_EXPLAIN: Final = "amq permissions explain --permissions /etc/amq/permissions.toml"


@dataclass(frozen=True, slots=True)
class Allowance:
    """`name` = the full name of a destination, the owner of batches, "" = the broker."""

    name: str
    allowed: bool
    reasons: tuple[AskedEntry, ...]


@click.group(epilog=examples(f"{_EXPLAIN} --user alice send /queue/orders"))
def permissions() -> None:
    """Explain what the permissions file allows a user, and why.

    docs/security.md explains the file.
    """


@permissions.command(
    epilog=examples(
        f"{_EXPLAIN} --user alice send /queue/orders",
        f"{_EXPLAIN} --role shop --role staff consume '/topic/prices.*'",
        f"{_EXPLAIN} --user root manage --json",
        f"{_EXPLAIN} --user spark prepare-batch 2f1e",
    )
)
@click.argument("action", type=click.Choice(list(ACTIONS)))
@click.argument("destination", required=False, default="")
@click.option(
    "--permissions", "path", metavar="FILE", required=True, envvar="AMQ_PERMISSIONS_FILE", help="The permissions file."
)
@click.option("--user", metavar="NAME", default="", help="The user; `anonymous` is one without a login.")
@click.option(
    "--role",
    "roles",
    metavar="ROLE",
    multiple=True,
    help="A role that the login brings, as tokens and directories do. May be repeated.",
)
@json_option
def explain(action: str, destination: str, path: str, user: str, roles: tuple[str, ...], as_json: bool) -> None:
    """Say whether a user may do something, and which lines of the permissions file decide it.

    DESTINATION is written as clients write it, /queue/orders or /topic/prices.*; with prepare-batch it is the owner of
    the batches; manage and manage-schedule have none. The exit code is 0 where the user may, and 1 where not.
    """
    if not user and not roles:
        raise click.UsageError("say who: --user NAME, or --role ROLE")
    asked = ACTIONS[action]
    if (asked in _OF_BROKER) == bool(destination):
        raise click.UsageError(f"{action} has no destination" if destination else f"{action} needs a destination")
    names = _names(asked, destination)
    rules = ExplainedPermissions.read(path)
    for role in roles:
        if not rules.known(role):
            raise click.UsageError(f"{path} has no role {role!r} in [roles]")
    who = User(user, frozenset(roles))
    answers = [_ask(rules, who, asked, name) for name in names]
    allowed = all(answer.allowed for answer in answers)
    if as_json:
        print_json(
            {
                "allowed": allowed,
                "user": user,
                "roles": rules.roles_of(who),
                "action": action,
                "answers": [_json(answer) for answer in answers],
            }
        )
    else:
        click.echo(f"{user or 'somebody'} has the roles {', '.join(rules.roles_of(who)) or '(none)'}")
        for answer in answers:
            _tell(asked, answer)
    if not allowed:
        raise click.exceptions.Exit(exits.FAILED)


def _names(action: Action, destination: str) -> list[str]:
    """Each part of a composite destination is asked for, as a send to it does."""
    if action in _OF_BROKER or action is Action.PREPARE_BATCH:
        return [destination]
    try:
        return parts(full_name(destination, ""))
    except ProtocolError as error:
        raise click.UsageError(error.description) from error


def _ask(rules: ExplainedPermissions, who: User, action: Action, name: str) -> Allowance:
    rules.reasons.clear()
    allowed = FileRules(rules)(who, action, name)
    reasons = rules.reasons
    if allowed:
        reasons = [reason for reason in reasons if reason.grants]
    return Allowance(name, allowed, tuple(reasons))


def _tell(action: Action, answer: Allowance) -> None:
    click.echo(f"{'allowed' if answer.allowed else 'denied'}: {action.value} {answer.name or 'the broker'}")
    for reason in answer.reasons:
        roles = ", ".join('everybody ("*")' if role == "*" else role for role in reason.roles) or "nobody"
        end = "; only = true, so no other entry counts" if reason.ends else ""
        click.echo(f"  {reason.place}: {reason.entry} gives the right {reason.right.value} to {roles}{end}")
    if not answer.reasons:
        click.echo("  everybody may" if answer.allowed else "  no entry is about it")


def _json(answer: Allowance) -> dict[str, object]:
    return {
        "destination": answer.name,
        "allowed": answer.allowed,
        "rules": [
            {
                "place": reason.place,
                "entry": reason.entry,
                "right": reason.right.value,
                "roles": list(reason.roles),
                "grants": reason.grants,
                "ends": reason.ends,
            }
            for reason in answer.reasons
        ],
    }
