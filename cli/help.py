"""`amq help` shows the manual of a command. Invariant: the text is that of the command's --help."""

from __future__ import annotations

import click

from amq.cli import exits
from amq.cli.output import examples


@click.command(epilog=examples("amq help", "amq help start", "amq help journal check"))
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the manual of a command, or the list of commands.

    `amq COMMAND --help` shows the same text.
    """
    assert ctx.parent is not None
    context = ctx.parent
    for word in words:
        command = context.command
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            exits.fail(f"no such command: amq {' '.join(words)}; amq help lists the commands", exits.USAGE)
        context = click.Context(found, info_name=word, parent=context)
    click.echo(context.get_help())
