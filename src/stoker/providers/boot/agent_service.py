"""The agent as a systemd service: its environment, its unit and its start."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from stoker.providers.boot.install_paths import InstallPaths

_LOGIN_S = 5.0
_HUNG_S = 600
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class AgentNotStarted(Exception):
    """The agent's service cannot be started. The message says why, and what to do about it."""


def agent_environ(config: dict[str, Any], cloud_environ: dict[str, str], install_paths: InstallPaths) -> dict[str, str]:
    """The agent's environment, which the training inherits."""
    path, libraries = _login_paths()
    folders = [folder for folder in path.split(":") if folder]
    environ = {
        "HOME": "/root",
        "USER": "root",
        "LANG": "C.UTF-8",
        # Last: a `python` for images that have only `python3`.
        "PATH": ":".join([*folders, str(install_paths.programs)]),
    }
    if libraries:
        environ["LD_LIBRARY_PATH"] = libraries
    environ.update(config["environ"])
    environ.update(cloud_environ)
    return environ


def _login_paths() -> tuple[str, str]:
    """PATH and LD_LIBRARY_PATH of a login shell: images for training set them in a profile."""
    script = r'printf "\n%s\n%s" "$PATH" "${LD_LIBRARY_PATH:-}"'
    environ = {"HOME": "/root", "PATH": _PATH}
    try:
        done = subprocess.run(
            ["bash", "-lc", script],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LOGIN_S,
        )
        path, libraries = done.stdout.decode(errors="replace").split("\n")[-2:]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return _PATH, ""
    return path or _PATH, libraries


def agent_unit(job: str, python: str, install_paths: InstallPaths, environ: dict[str, str]) -> str:
    """The agent's systemd unit.

    An agent that crashes takes the training with it and is restarted to upload what is left. The machine is given back
    when the agent is done, or when it crashes for the fourth time.
    """
    # Not FailureAction, which comes before any restart, nor SuccessAction, which before systemd 254 comes between a
    # failure and its restart: https://github.com/systemd/systemd/issues/11419
    leave_after_success = f'[ "$$SERVICE_RESULT" != success ] || exec {install_paths.leave}'
    lines = [
        "[Unit]",
        f"Description=Stoker: the agent of {job}",
        # On shutdown docker stops after the agent: stopped earlier, it would kill a training that is saving.
        "After=network.target docker.service",
        "StartLimitIntervalSec=1d",
        "StartLimitBurst=4",
        "OnFailure=stoker-leave.service",
        "",
        "[Service]",
        f"ExecStart={_quoted(python)} {_quoted(str(install_paths.agent))} {_quoted(str(install_paths.node))}",
        f"ExecStopPost=/bin/sh -c '{leave_after_success}'",
        f"WorkingDirectory={install_paths.node.parent}",
        *(f"Environment={_quoted(name + '=' + value)}" for name, value in sorted(environ.items())),
        f"StandardOutput=append:{install_paths.node / 'agent.log'}",
        "StandardError=inherit",
        "Restart=on-failure",
        "RestartSec=1",
        # Only the agent gets SIGTERM, and saves; systemd kills the processes that it leaves behind.
        "KillMode=mixed",
        "TimeoutStopSec=90",
        # An agent that hangs is treated as dead: see `stoker.agent.systemd_watchdog`.
        f"WatchdogSec={_HUNG_S:d}",
        "NotifyAccess=main",
        # The agent makes cgroups below its own. The kernel's OOM killer ends the training, and the agent reports it.
        "Delegate=yes",
        "OOMPolicy=continue",
        "OOMScoreAdjust=-500",
        "LimitNOFILE=1048576",
        "LimitMEMLOCK=infinity",
        "TasksMax=infinity",
        "",
        # Started again after a reboot: that agent never trains, it uploads what is left and powers off.
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def start_agent(
    config: dict[str, Any],
    python: str,
    install_paths: InstallPaths,
    cloud_environ: dict[str, str],
    identity: dict[str, Any],
) -> None:
    """Write the node's configuration and the agent's service, and start it. Raises AgentNotStarted.

    `identity` holds the rank and the instance of this machine, which the configuration lacks.
    """
    install_paths.programs.mkdir(parents=True, exist_ok=True)
    program = install_paths.programs / "python"
    program.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n', encoding="utf-8")
    for path in (install_paths.home, install_paths.programs, program):
        path.chmod(0o755)
    install_paths.node.mkdir(mode=0o700, parents=True, exist_ok=True)
    environ = agent_environ(config, cloud_environ, install_paths)
    unit = agent_unit(config["node"]["job"], python, install_paths, environ)
    (install_paths.units / "stoker-agent.service").write_text(unit, encoding="utf-8")
    node = json.dumps(dict(config["node"], **identity), sort_keys=True, separators=(",", ":"))
    # Last: the presence of this file means that the machine has an agent.
    (install_paths.node / "node.json").write_text(node, encoding="utf-8")
    # Ordering is ignored at this start: docker may take forever to come up, and most jobs do not need it.
    command = ["systemctl", "enable", "--now", "--job-mode=ignore-dependencies", "stoker-agent.service"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        text = done.stdout.decode(errors="replace").strip()
        raise AgentNotStarted(f"`{' '.join(command)}` failed: {text} — Stoker needs an image with systemd")
