"""``nightquant completion``: the script that completes commands, options and names in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from storage.errors import ConfigurationError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, workloads and recipes in SHELL.

    Have it read by each new shell: from ~/.bashrc or ~/.zshrc as below; for fish, put its output into
    ~/.config/fish/completions/nightquant.fish.

    \b
    Example:
      eval "$(nightquant completion bash)"
      nightquant completion fish > ~/.config/fish/completions/nightquant.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise ConfigurationError(f"This version of click completes nothing in {shell}.")
    root = context.find_root()
    click.echo(found(root.command, {}, "nightquant", "_NIGHTQUANT_COMPLETE").source())
