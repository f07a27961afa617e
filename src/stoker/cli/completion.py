"""`stoker completion`."""

from __future__ import annotations

import click

# Click's own script for bash takes words as bash splits them, also at `=` and `:`, so it completes nothing after
# `--tag team=` or `--tag=`. This script joins them again, and returns the part after the last split, which bash
# replaces.
_BASH = r"""
_stoker_completion() {
    local IFS=$'\n' line=$COMP_LINE rest token kept completion type value response i
    local -a words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        token=${COMP_WORDS[i]}
        rest=${line#"${line%%[![:space:]]*}"}
        if ((i == 0)) || [[ $rest != "$line" ]]; then
            words+=("$token")
        else
            words[${#words[@]} - 1]+=$token
        fi
        line=${rest#"$token"}
    done
    kept=${words[${#words[@]} - 1]}
    [[ $COMP_WORDBREAKS == *:* ]] || kept=${kept//:/_}
    [[ $COMP_WORDBREAKS == *=* ]] || kept=${kept//=/_}
    kept=${kept%"${kept##*[=:]}"}
    [[ $kept != -*=* ]] || kept=${kept#*=}
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _STOKER_COMPLETE=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("${value#"$kept"}")
            # A field of the job file is not the end of the word.
            [[ $value != *[=.] ]] || compopt -o nospace
        fi
    done
    return 0
}
complete -o nosort -F _stoker_completion stoker
"""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of your shell.

    \b
    bash: eval "$(stoker completion bash)"       in ~/.bashrc
    zsh:  eval "$(stoker completion zsh)"        in ~/.zshrc
    fish: stoker completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from stoker.cli import cli

    if shell == "bash":
        click.echo(_BASH)
        return
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(cli, {}, "stoker", "_STOKER_COMPLETE").source())
