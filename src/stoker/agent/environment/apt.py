"""Install missing Debian packages as root, on the machine or in the container that the training runs in.

The submitter's own computer is never changed: every package must be installed there already.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from stoker.agent.environment.package_sources import FetchSecret
from stoker.agent.environment.steps import Step, nothing_to_undo
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import read_deb, user_name
from stoker.model.spec import PackageIndex

_FIELD = "environment.apt_mirror.secret"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INHERITED_VARIABLES = ("home", "tmpdir", "http_proxy", "https_proxy", "no_proxy")
_REMEDY = "choose an image that has these packages"

# The positional arguments are the packages. Machines and containers run the same script, because `sh` is the only shell
# that all of them have.
SCRIPT = r"""set -u
export LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a NEEDRESTART_SUSPEND=1 UCF_FORCE_CONFFOLD=1
password=${STOKER_APT_PASSWORD-}
unset STOKER_APT_PASSWORD
is_installed() {
    wanted=
    case $1 in *=*) wanted=${1#*=} ;; esac
    dpkg-query -W -f='${db:Status-Status} ${Version}\n' "${1%%[=/]*}" 2>/dev/null | while read -r state version; do
        [ "$state" = installed ] && [ "${wanted:-$version}" = "$version" ] && echo yes
    done | grep -q yes
}
missing=
for package; do
    is_installed "$package" || missing="$missing $package"
done
missing=${missing# }
if [ -z "$missing" ]; then
    echo "installed already: $*"
    exit 0
fi
if [ -n "${STOKER_APT_CHECK_ONLY-}" ]; then
    echo "not installed on this computer, which Stoker never changes: $missing;" \
        "run 'apt-get install $missing' here as root, or set environment.container" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "there is no apt-get here, so environment.apt cannot be installed; choose an image of Debian or Ubuntu" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "only root can install $missing, and this is $(id -un)" >&2
    exit 1
fi

# Minimal images may lack these folders, and apt does not create them.
mkdir -p /var/cache/apt/archives/partial /var/lib/apt/lists/partial /var/log/apt
# A mirror gets its own sources and lists, so that the machine's stay unchanged. Nothing in this folder is secret.
work=$(mktemp -d) && chmod 755 "$work" || exit 1
trap 'rm -rf "$work"' EXIT
source=${STOKER_APT_SOURCE-}
if [ -n "$source" ]; then
    mkdir -p "$work/lists/partial"
    if [ -n "${STOKER_APT_SUITE-}" ]; then
        echo "deb $source $STOKER_APT_SUITE"
    else
        . /etc/os-release
        release=${VERSION_CODENAME:?the release of this system is not known; write it into environment.apt_mirror.url}
        case $ID in
            ubuntu) suites="$release $release-updates $release-security" parts="main restricted universe multiverse" ;;
            *) suites="$release $release-updates" parts=main ;;
        esac
        for suite in $suites; do echo "deb $source $suite $parts"; done
    fi >"$work/sources.list"
fi
if [ -n "$password" ]; then
    # The file is unlinked before the password is written to it, and disappears when this shell exits.
    file=$(mktemp /dev/shm/stoker.XXXXXX 2>/dev/null || mktemp) || exit 1
    exec 3<>"$file" && rm -f "$file" || exit 1
    printf 'machine %s login %s password %s\n' "$STOKER_APT_MACHINE" "$STOKER_APT_USER" "$password" >&3
fi

apt_get() {
    if [ -n "$source" ]; then
        set -- -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o "Dir::State::Lists=$work/lists" "$@"
    fi
    if [ -n "$password" ]; then
        set -- -o "Dir::Etc::netrc=/proc/$$/fd/3" -o Dir::Etc::netrcparts=/dev/null "$@"
    fi
    # Package scripts must not inherit the password file. A subshell closes it: a plain `3<&-` would renumber it here.
    (
        exec 3<&-
        exec apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 \
            -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@"
    )
}
# A new machine may be updating itself, and apt-get does not wait for the lock on the lists.
tries=120
while :; do
    apt_get update >"$work/update" 2>&1
    code=$?
    grep -q 'Could not get lock' "$work/update" && [ "$tries" -gt 0 ] || break
    [ "$tries" = 120 ] && echo "waiting for another apt-get to end"
    tries=$((tries - 1))
    sleep 5
done
cat "$work/update"
# One unreachable source is no reason to give up: the installation fails below if a package is missing.
[ "$code" = 0 ] || echo "apt-get update failed; continuing with the existing lists"
apt_get install --no-install-recommends $missing
"""


def install_step(
    packages: Sequence[str],
    mirror: PackageIndex | None,
    fetch: FetchSecret,
    env: Mapping[str, str],
    cwd: Path,
    *,
    check_only: bool,
) -> Step:
    """Build the step that installs the packages. Raises SetupFailed.

    `check_only`: this is the submitter's own computer, so the step only checks that the packages are installed.
    """
    # The system's own programs must not use the training's libraries and Python, so few variables are inherited.
    variables = {name: value for name, value in env.items() if name.lower() in _INHERITED_VARIABLES} | {"PATH": _PATH}
    if check_only:
        variables["STOKER_APT_CHECK_ONLY"] = "1"
    secrets: dict[str, str] = {}
    if mirror is not None and not check_only:
        mirror_variables, secrets = _mirror_variables(mirror, fetch)
        variables |= mirror_variables
    argv = ("sh", "-c", SCRIPT, "apt", *packages)
    command = Command(argv, variables, cwd, secrets, root=True)
    named = ", ".join(packages)
    # apt continues where a failed installation stopped, so there is nothing to undo.
    return Step(
        f"apt ({named})", command, _REMEDY, f"environment.apt: {named} cannot be installed", undo=nothing_to_undo
    )


def missing_packages(packages: Sequence[str]) -> tuple[str, ...]:
    """Return the packages that are not installed on this computer. Changes nothing."""
    return tuple(name for name in packages if not _is_installed(name))


def _is_installed(package: str) -> bool:
    command = ["sh", "-c", SCRIPT, "apt", package]
    env = {**os.environ, "STOKER_APT_CHECK_ONLY": "1"}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def _mirror_variables(mirror: PackageIndex, fetch: FetchSecret) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that name the mirror, and the secret variables that hold its password."""
    source = read_deb(mirror.url)
    variables = {
        "STOKER_APT_SOURCE": f"{source.options} {source.address.url}".strip(),
        "STOKER_APT_SUITE": source.suite,
    }
    if mirror.secret is None:
        return variables, {}
    password = fetch(_FIELD, mirror.secret)
    if not password or any(c.isspace() for c in password):
        raise SetupFailed(
            f"{_FIELD}: is empty or contains white space, which apt's auth.conf cannot express", user=True
        )
    variables["STOKER_APT_MACHINE"] = _machine(source.address.url)
    variables["STOKER_APT_USER"] = user_name(mirror, source.address)
    return variables, {"STOKER_APT_PASSWORD": password}


def _machine(url: str) -> str:
    """Return the address as auth.conf names it.

    apt sends a password without encryption only if the entry names the scheme.
    """
    parts = urlsplit(url)
    place = f"{parts.netloc}{parts.path}"
    return place if parts.scheme == "https" else f"{parts.scheme}://{place}"
