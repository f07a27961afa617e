"""Debian packages: what is missing is installed, as root, on the machine or in the container that the training runs in.

The submitter's own computer is never changed: there everything has to be installed already.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from stoker.agent.environment.steps import Step, nothing_to_undo
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import read_deb, user_of
from stoker.model.spec import PackageIndex

# Reads the secret at a reference, for the field of this name. Raises SetupFailed.
Fetch = Callable[[str, str], str]

_FIELD = "environment.apt_mirror.secret"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("home", "tmpdir", "http_proxy", "https_proxy", "no_proxy")
_REMEDY = "choose an image that has these packages"

# Positional arguments are the packages. One script for machines and containers, for only `sh` is in all of them.
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
if [ -n "${STOKER_APT_KEEP_OUT-}" ]; then
    echo "not installed on this computer, which Stoker never changes: $missing;" \
        "run 'apt-get install $missing' here as root, or set environment.container" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "there is no apt-get here, so environment.apt cannot be had; choose an image of Debian or Ubuntu" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "only root can install $missing, and this is $(id -un)" >&2
    exit 1
fi

# Images that were made small may lack these, and apt does not make them.
mkdir -p /var/cache/apt/archives/partial /var/lib/apt/lists/partial /var/log/apt
# Sources and lists of their own where there is a mirror: the machine's stay as they are. Nothing in here is secret.
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
    # The password is in a file that has no name any more when it is written, and that ends with this shell.
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
    # What packages run while they are installed does not get the file. In a subshell, for a plain `3<&-` moves it here.
    (
        exec 3<&-
        exec apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 \
            -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@"
    )
}
# A new machine updates itself meanwhile, and for lists apt-get does not wait by itself.
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
# One source of many that does not answer is no reason to give up: what is missing shows below.
[ "$code" = 0 ] || echo "apt-get update failed; going on with the lists that there are"
apt_get install --no-install-recommends $missing
"""


def step(
    packages: Sequence[str],
    mirror: PackageIndex | None,
    fetch: Fetch,
    env: Mapping[str, str],
    cwd: Path,
    *,
    keep_out: bool,
) -> Step:
    """What installs them. `keep_out`: this is somebody's own computer, so it only looks. Raises SetupFailed."""
    # The libraries and the Python of the training are not for the system's own programs.
    told = {name: value for name, value in env.items() if name.lower() in _KEPT} | {"PATH": _PATH}
    if keep_out:
        told["STOKER_APT_KEEP_OUT"] = "1"
    secrets: dict[str, str] = {}
    if mirror is not None and not keep_out:
        more, secrets = _mirror(mirror, fetch)
        told |= more
    argv = ("sh", "-c", SCRIPT, "apt", *packages)
    command = Command(argv, told, cwd, secrets, root=True)
    named = ", ".join(packages)
    # What was half done, apt does on.
    return Step(
        f"apt ({named})", command, _REMEDY, f"environment.apt: {named} cannot be installed", undo=nothing_to_undo
    )


def missing_here(packages: Sequence[str]) -> tuple[str, ...]:
    """Those that are not installed on this computer. Changes nothing."""
    return tuple(name for name in packages if not _is_installed(name))


def _is_installed(package: str) -> bool:
    command = ["sh", "-c", SCRIPT, "apt", package]
    env = {**os.environ, "STOKER_APT_KEEP_OUT": "1"}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def _mirror(mirror: PackageIndex, fetch: Fetch) -> tuple[dict[str, str], dict[str, str]]:
    source = read_deb(mirror.url)
    told = {"STOKER_APT_SOURCE": f"{source.options} {source.address.url}".strip(), "STOKER_APT_SUITE": source.suite}
    if mirror.secret is None:
        return told, {}
    password = fetch(_FIELD, mirror.secret)
    if not password or any(c.isspace() for c in password):
        raise SetupFailed(f"{_FIELD}: is empty or holds a space, which apt's auth.conf cannot say", user=True)
    told["STOKER_APT_MACHINE"] = _machine(source.address.url)
    told["STOKER_APT_USER"] = user_of(mirror, source.address)
    return told, {"STOKER_APT_PASSWORD": password}


def _machine(url: str) -> str:
    """As auth.conf names a place. One without encryption must be named with its scheme, or it gets no password."""
    parts = urlsplit(url)
    place = f"{parts.netloc}{parts.path}"
    return place if parts.scheme == "https" else f"{parts.scheme}://{place}"
