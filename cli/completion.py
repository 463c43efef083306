"""`amq completion` writes the script by which a shell completes amq's commands and options.

Invariant: the script asks the installed `amq` for each completion, so it never goes stale.
"""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from amq.cli.output import examples


class _Bash(BashComplete):
    @staticmethod
    def _check_version() -> None:
        """The script needs bash 4.4 where it runs. The bash of this host, if any, does not matter."""


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    epilog=examples(
        "amq completion bash >~/.local/share/bash-completion/completions/amq",
        "amq completion zsh >~/.zfunc/_amq",
        "amq completion fish >~/.config/fish/completions/amq.fish",
    )
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write a script that lets a shell complete commands and options.

    The examples show where each shell looks for it. Bash needs version 4.4 or later and the package bash-completion.
    For zsh, put `fpath+=~/.zfunc` before `compinit` into ~/.zshrc. Start a new shell afterwards.
    """
    root = ctx.find_root().command
    click.echo(SHELLS[shell](root, {}, "amq", "_AMQ_COMPLETE").source())
