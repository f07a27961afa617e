"""The script with which a plain machine becomes a node at its first boot. Built purely.

The script is bash and carries two files: `boot.json`, the settings of this claim, and `boot.pyz`, a zip of
`stoker.providers.boot` and the bootstrap of the machine's cloud. It carries no credential: the machine has an identity
of its own.
"""

from __future__ import annotations

import ast
import base64
import gzip
import io
import json
import re
import textwrap
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, cast

from stoker.model import codec, keys
from stoker.model.node_config import NodeConfig
from stoker.providers.base import LaunchOrder
from stoker.providers.image_info import newer_image

# A machine without an agent by then is switched off. Longer than the bootstrap's own retries.
BOOT_LIMIT_S = 900

_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|CREDENTIAL|_KEY(_ID)?$", re.IGNORECASE)

# The modules of `stoker.providers.boot` that run on the machine.
_BOOT_MODULES = ("install", "install_paths", "retry")


@dataclass(frozen=True)
class BootSettings:
    """The settings of a machine's boot. The machine learns its rank and its name from its metadata."""

    store: str
    provider: str
    job: str
    claim: int
    nodes: int
    # The agent bundles to choose from: the name in the store by Python and architecture (`cp311-x86_64`).
    bundles: Mapping[str, str]
    # Variables with which the bucket is found. Nothing secret.
    environ: Mapping[str, str] = field(default_factory=dict)
    # The machine switches itself off after this long, in every case.
    max_life_s: float | None = None
    # Settings that only the bootstrap of its own cloud reads.
    more: Mapping[str, Any] = field(default_factory=dict)


def boot_settings(order: LaunchOrder, provider: str, environ: Mapping[str, str], **more: Any) -> BootSettings:
    """The boot settings of this order's machines."""
    return BootSettings(
        store=order.store,
        provider=provider,
        job=order.job,
        claim=order.claim,
        nodes=order.nodes,
        bundles=dict(order.bundles),
        environ=dict(environ),
        max_life_s=order.max_life_s,
        more=more,
    )


def disk_settings(order: LaunchOrder, *, own_disks: bool) -> dict[str, Any]:
    """The settings about the machine's own disks (`local_disks`): those of an order that uses them itself are left
    alone, and disks that are smaller than the job's are not used."""
    wanted = order.spec.resources.disk_bytes
    return {"own_disks": True} if own_disks else {} if wanted is None else {"disk_bytes": wanted}


def render(boot: BootSettings, payload: bytes, *, gives_back: bool = False) -> str:
    """Render the script. `gives_back`: a machine that is switched off still exists, so `--leave` must delete it
    first."""
    return _SCRIPT.format(
        job=boot.job,
        tags=" ".join(sorted(boot.bundles)),
        remedy=newer_image(boot.bundles),
        boot_limit_s=BOOT_LIMIT_S,
        life_s="" if boot.max_life_s is None else max(1, round(boot.max_life_s)),
        leave=_LEAVE if gives_back else "",
        config=json.dumps(config_of(boot), indent=1, sort_keys=True),
        payload="\n".join(textwrap.wrap(base64.b64encode(payload).decode(), 120)),
    )


def config_of(boot: BootSettings) -> dict[str, object]:
    """The content of `boot.json`. Raises ValueError if a variable's name looks like a secret."""
    for name in boot.environ:
        if _SECRET.search(name):
            raise ValueError(f"{name} must not be in a boot script, which every user of the machine can read")
    bucket, _, prefix = boot.store.partition("://")[2].partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    node = NodeConfig(
        store=boot.store,
        provider=boot.provider,
        job=boot.job,
        claim=boot.claim,
        rank=0,
        nodes=boot.nodes,
        instance="",
        max_life_s=boot.max_life_s,
    )
    # A template: the machine inserts its own rank.
    output = keys.node(boot.job, boot.claim, cast(int, "{rank}"), keys.boot("{instance}", 0))
    return {
        "bucket": bucket,
        "bundle_key": prefix + keys.bundle("{name}"),
        "bundles": dict(boot.bundles),
        "environ": dict(boot.environ),
        "node": codec.dump(node),
        "output_key": prefix + keys.boot_output(output),
        **boot.more,
    }


def payload(package: str, *beside: str) -> bytes:
    """Pack the cloud's `bootstrap`, `stoker.providers.boot` and the `beside` modules as a zip that Python runs,
    gzipped.

    The same sources give the same bytes. Every `__init__` is packed empty.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry("__main__.py"), _lean(_source(f"{package}.bootstrap")))
        modules = [*(f"stoker.providers.boot.{name}" for name in _BOOT_MODULES), *beside]
        folders = sorted(
            {"/".join(name.split(".")[:depth]) for name in modules for depth in range(1, name.count(".") + 1)}
        )
        for folder in folders:
            archive.writestr(_entry(f"{folder}/__init__.py"), "")
        for name in modules:
            archive.writestr(_entry(f"{name.replace('.', '/')}.py"), _lean(_source(name)))
    return gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0)


@lru_cache(maxsize=8)
def lean_source(module: str) -> str:
    """A module's source as it is sent to a machine."""
    return _lean(_source(module))


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def _lean(source: str) -> str:
    """The source without comments and docstrings, which would take a third of the limited space."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) or ast.get_docstring(node) is None:
            continue
        text = node.body[0]
        assert text.end_lineno is not None
        lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
        if len(node.body) == 1:
            lines[text.lineno - 1] = " " * text.col_offset + "pass\n"
    return "".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


# Try the Python that booted, then others. If none succeeds, a governor deletes the machine once it finds it stopped.
_LEAVE = r"""cd "${0%/*}" || exit 1
for python in $(cat python 2>/dev/null) python3 /opt/pytorch/bin/python /opt/conda/bin/python; do
    timeout 60 "$python" boot.pyz boot.json --leave
    case $? in 0 | 3 | 124) break ;; esac
done
"""

# Doubled braces are bash's own. Tests can move `root` and the folders that are searched for Pythons.
_SCRIPT = r"""#!/bin/bash
# Stoker: this machine becomes a node of {job}. It ends with its agent, or when one of the timers below fires.
set -u
root=${{STOKER_BOOT_ROOT:-}}
node=$root/var/lib/stoker/node
boot=$root/opt/stoker/boot
units=$root/etc/systemd/system
log=$root/var/log/stoker-boot.log
tags="{tags}"
export PATH="${{PATH:-}}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export PYTHONIOENCODING=utf-8

# Run again, after a reboot. If its node's folders are on disks and these do not come, nothing of them is left, and it
# must not train again. systemd mounts them, too.
if [ -e "$boot/disks" ]; then
    for _ in {{1..24}}; do
        mountpoint -q "${{node%/*}}" || mount "${{node%/*}}" && break
        sleep 5
    done
    [ -e "$node/node.json" ] || exec "$boot/leave"
fi
# The agent is a service, and never trains a second time.
if [ -e "$node/node.json" ]; then
    systemctl start stoker-agent.service
    exit 0
fi

umask 022
mkdir -p "$boot" "$units/timers.target.wants" "${{log%/*}}"
exec > >(tee -a "$log") 2>&1

# Whatever ends this machine runs this.
printf '#!/bin/sh\nroot=%q\n' "$root" >"$boot/leave"
cat >>"$boot/leave" <<'STOKER_LEAVE'
{leave}systemctl --no-block poweroff || systemctl poweroff --force || shutdown -P now || poweroff -f ||
    [ -n "$root" ] || echo o >/proc/sysrq-trigger
STOKER_LEAVE
chmod 755 "$boot/leave"
trap '"$boot/leave"' EXIT

# service NAME LINES-OF-ITS-UNIT
service() {{
    printf '[Unit]\nDescription=Stoker: %s\n%s\n[Service]\nType=oneshot\nExecStart=%s\n' "$1" "$2" "$boot/leave" \
        >"$units/$1.service"
}}
service stoker-leave ""

# A timer from the machine's start on, in every boot of it: deadline NAME SECONDS [CONDITION]
deadline() {{
    service "$1" "${{3:-}}"
    printf '[Unit]\nDescription=Stoker: %s\n[Timer]\nOnBootSec=%s\nAccuracySec=1s\n' "$1" "$2" >"$units/$1.timer"
    ln -sf "../$1.timer" "$units/timers.target.wants/$1.timer"
    systemctl start "$1.timer" || shutdown -P "+$((($2 + 59) / 60))"
}}
life={life_s}
[ -z "$life" ] || deadline stoker-life "$life"
deadline stoker-boot {boot_limit_s} "ConditionPathExists=!$node/node.json"

cat >"$boot/boot.json" <<'STOKER_BOOT_JSON'
{config}
STOKER_BOOT_JSON
base64 -d <<'STOKER_BOOT_PYZ' | gzip -d >"$boot/boot.pyz"
{payload}
STOKER_BOOT_PYZ

# A Python that some agent was packed for; else any that can at least report.
probe='
import platform, sys
import ssl, sysconfig, zlib
n = sys.version_info[1] if sys.version_info[0] == 3 else 0
m = platform.machine().replace("aarch64", "arm64")
t = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("cp3%d%s-%s %d.%d.%d %d" % ((min(n, 11), t, m) + sys.version_info[:3] + (n >= 6,)))
'
python='' tag='' reporter='' found=''
for one in ${{STOKER_BOOT_PYTHONS:-python3 python3.14 python3.13 python3.12 python3.11 python3.10 \
    /opt/pytorch/bin/python /opt/conda/bin/python /usr/local/bin/python3 /usr/local/bin/python3.1[0-9] \
    /usr/bin/python3.1[0-9]}}; do
    path=$(command -v "$one") || continue
    read -r its version reports < <("$path" -c "$probe" 2>/dev/null) || continue
    case "$found" in *"$path ("*) continue ;; esac
    echo "stoker: found $path ($version, $its)"
    found="$found${{found:+, }}$path ($version)"
    [ "$reports" = 1 ] && reporter=${{reporter:-$path}}
    case " $tags " in *" $its "*) python=$path tag=$its && break ;; esac
done

echo "${{python:-$reporter}}" >"$boot/python"
if [ -n "$python" ]; then
    "$python" "$boot/boot.pyz" "$boot/boot.json" "$python" "$tag" && trap - EXIT
    exit
fi
what="no Python that an agent was packed for (${{tags// /, }}): found ${{found:-none}} — {remedy}"
if [ -n "$reporter" ]; then
    "$reporter" "$boot/boot.pyz" "$boot/boot.json" --failed "$what"
else
    echo "stoker: boot failed: $what"
fi
exit 1
"""
