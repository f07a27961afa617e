"""`stoker completion`."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print completion for your shell.

    \b
    bash: eval "$(stoker completion bash)"       in ~/.bashrc
    zsh:  eval "$(stoker completion zsh)"        in ~/.zshrc
    fish: stoker completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from stoker.cli import cli

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(cli, {}, "stoker", "_STOKER_COMPLETE").source())
