"""Root filesystems that machines boot: Debian 11, 12 and 13 with systemd and cloud-init, built once and kept.

`scripts/need-machines.sh` builds those that are missing (`main`). That needs root, mmdebstrap and the mirror that
this host's apt uses, so it happens before the tests, outside their isolation. A tree is named by a digest of its
recipe and appears whole or not at all; any number of builders may run at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Where a machine finds its metadata. The real address is link-local, and nothing in a test may speak to that one.
METADATA_PORT = 8169
METADATA_ENDPOINT = f"http://127.0.0.1:{METADATA_PORT}"

_PACKAGES = ("systemd", "systemd-sysv", "dbus", "cloud-init", "python3", "iproute2", "openssh-server", "sudo")

# Nobody reads these on a machine that lives for seconds; they are half of its size.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/i18n/*")

# Modules that a machine without disks, mirrors and consoles has no use for would cost each boot a second.
_CLOUD_CONFIG = f"""\
datasource_list: [Ec2]
datasource:
  Ec2:
    strict_id: false
    metadata_urls: ['{METADATA_ENDPOINT}']
    max_wait: 60
    timeout: 10
network: {{config: disabled}}
ssh_genkeytypes: [ed25519]
cloud_init_modules: [bootcmd, write-files, set-hostname, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-per-boot, scripts-per-instance, scripts-user, final-message]
system_info:
  default_user: {{name: admin, lock_passwd: true, sudo: ['ALL=(ALL) NOPASSWD:ALL'], shell: /bin/bash}}
"""

_FILES = {
    "etc/cloud/cloud.cfg.d/99_machine.cfg": _CLOUD_CONFIG,
    # What logs in reads the first, what systemd starts (user-data among it) has the second.
    "etc/environment": f"AWS_EC2_METADATA_SERVICE_ENDPOINT={METADATA_ENDPOINT}\n",
    "etc/systemd/system.conf.d/metadata.conf": (
        f"[Manager]\nDefaultEnvironment=AWS_EC2_METADATA_SERVICE_ENDPOINT={METADATA_ENDPOINT}\n"
    ),
    # Its console is where output is read, and nobody logs in there.
    "etc/systemd/journald.conf.d/small.conf": "[Journal]\nStorage=volatile\n",
    # An empty file makes each machine take the id it is given, without the long way of a first boot.
    "etc/machine-id": "",
    "etc/fstab": "",
    "etc/hostname": "debian\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}

# The machine's address is there before it boots; timers and logins have no place in tests.
_MASKED = (
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "networking.service",
    "console-getty.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "dpkg-db-backup.timer",
    "cloud-init-hotplugd.socket",
)


@dataclass(frozen=True)
class Tree:
    """The root filesystem of one release of Debian; with more packages and files, a layer over the one without."""

    suite: str
    packages: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    # What a machine has on a disk of its own, where it can lay layers over layers: folders of it, each with the kept
    # folder that it begins as a copy of.
    disks: tuple[tuple[str, str], ...] = ()
    # Folders of this host that a machine only reads: where it has each, and where that is here.
    lent: tuple[tuple[str, str], ...] = ()
    # Tells a tree with files of its own, and no packages, from the one without.
    label: str = ""

    @property
    def name(self) -> str:
        return "+".join((self.suite, *self.packages, *((self.label,) if self.label else ())))

    @property
    def path(self) -> Path:
        """Where it is, once it is built."""
        return images_folder() / f"{self.name}-{_digest(self)}"

    @property
    def built(self) -> bool:
        return all(folder.is_dir() for folder in self.layers)

    @property
    def layers(self) -> tuple[Path, ...]:
        """The folders that it is made of, the uppermost first."""
        return (self.path, Tree(self.suite).path) if self.packages or self.label else (self.path,)


# Makes, before anything else at the first boot, what images for training have: an environment with a PyTorch, and a
# driver that is still being installed. `/run/gpus` holds the number of GPUs once it is there.
_PYTORCH_BOOT = """\
#!/bin/sh
set -e
[ ! -e /opt/pytorch ] || exit 0
python3 -m venv --without-pip /opt/pytorch
cd /opt/pytorch/lib/python3*/site-packages
mkdir torch torch-2.9.0+cu129.dist-info numpy-1.26.4.dist-info
cat >torch/__init__.py <<'END'
import sys
__version__ = "2.9.0+cu129"
def main():
    print("torchrun of", sys.prefix, flush=True)
END
cd torch-2.9.0+cu129.dist-info
printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0+cu129\nRequires-Dist: numpy\n' >METADATA
printf '[console_scripts]\ntorchrun = torch:main\n' >entry_points.txt
: >RECORD
echo stoker >INSTALLER
cd ..
echo '__version__ = "1.26.4"' >numpy.py
printf 'Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n' >numpy-1.26.4.dist-info/METADATA
: >numpy-1.26.4.dist-info/RECORD
printf '#!/opt/pytorch/bin/python\nfrom torch import main\nmain()\n' >/opt/pytorch/bin/torchrun
cat >/usr/bin/nvidia-smi <<'END'
#!/bin/sh
if [ ! -s /run/gpus ]; then
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    exit 9
fi
for number in $(seq 0 $(($(cat /run/gpus) - 1))); do echo "GPU $number: NVIDIA A10G (UUID: GPU-$number)"; done
END
chmod 755 /opt/pytorch/bin/torchrun /usr/bin/nvidia-smi
"""
_PYTORCH_FILES = (
    ("etc/cloud/cloud.cfg.d/98_pytorch.cfg", "bootcmd:\n  - [sh, /usr/share/stoker-test/pytorch.sh]\n"),
    ("usr/share/stoker-test/pytorch.sh", _PYTORCH_BOOT),
)

# What a Deep Learning AMI makes of the instance store, at every boot: AWS's own service makes an LVM volume of the
# disks once, and mounts it. A folder stands in for the volume, and a file for the device: machines have no disks here.
_NVME_BOOT = """\
#!/bin/sh
sleep 2
mkdir -p /opt/dlami/nvme /var/instance-store
mount --bind /var/instance-store /opt/dlami/nvme
chmod 1777 /opt/dlami/nvme
"""
_NVME_UNIT = """\
[Unit]
Description=Mount Ephemeral NVME Storage to DLAMI
After=network-online.target
[Service]
Type=oneshot
ExecStart=/bin/sh /usr/share/stoker-test/nvme.sh
RemainAfterExit=yes
"""
_NVME_BLOCKS = "usr/share/stoker-test/block"
_NVME_FILES = (
    ("etc/cloud/cloud.cfg.d/97_nvme.cfg", "bootcmd:\n  - [sh, -c, ': >/dev/nvme1n1']\n"),
    ("etc/systemd/system/dlami-nvme.service", _NVME_UNIT),
    ("etc/systemd/system/multi-user.target.d/nvme.conf", "[Unit]\nWants=dlami-nvme.service\n"),
    ("usr/share/stoker-test/nvme.sh", _NVME_BOOT),
    (f"{_NVME_BLOCKS}/nvme0n1/device/model", f"{'Amazon Elastic Block Store':40}\n"),
    (f"{_NVME_BLOCKS}/nvme1n1/device/model", f"{'Amazon EC2 NVMe Instance Storage':40}\n"),
    (f"{_NVME_BLOCKS}/nvme1n1/size", f"{250 * 10**9 // 512}\n"),
)

BULLSEYE, BOOKWORM, TRIXIE = TREES = (Tree("bullseye"), Tree("bookworm"), Tree("trixie"))
# An image for training, in small.
PYTORCH = Tree("bookworm", files=_PYTORCH_FILES, label="pytorch")
# One with instance store that it mounts itself. nspawn takes a source that begins with `+` from the machine's own tree.
NVME = Tree("bookworm", files=_NVME_FILES, lent=(("/sys/class/block", f"+/{_NVME_BLOCKS}"),), label="nvme")


def images_folder() -> Path:
    """Where trees are kept: $STOKER_TEST_IMAGES, else a folder in the user's cache."""
    return Path(os.environ.get("STOKER_TEST_IMAGES") or Path.home() / ".cache" / "stoker-test-images")


def build(image: Tree) -> Path:
    """Where the tree is, built now if it is missing. Raises CalledProcessError if Debian's tools fail."""
    folder, name = images_folder(), image.name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f".{name}.lock"):
        if not image.built:
            # Only a builder that died leaves these; the lock says that none is at work.
            for left in folder.glob(f".building-{name}-*"):
                shutil.rmtree(left)
            building = Path(tempfile.mkdtemp(prefix=f".building-{name}-", dir=folder))
            root = building / "root"
            if image.packages:
                _lay(image, building, root)
            elif image.label:
                _write(root, dict(image.files))
            else:
                subprocess.run(_bootstrap(image.suite, root), check=True, stdin=subprocess.DEVNULL)
                _finish(root)
            root.rename(image.path)
            shutil.rmtree(building)
            for old in folder.glob(f"{name}-*"):
                if old != image.path:
                    shutil.rmtree(old, ignore_errors=True)
    return image.path


# In a mount namespace of its own, so that no mount is left. $1: where the layer goes, $2: its base; then packages.
_LAY = """\
upper=$1 base=$2 work=$1.work root=$1.seen; shift 2
mkdir "$upper" "$work" "$root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$upper,workdir=$work" "$root"
mount -t proc proc "$root/proc"
[ ! -e "$root/etc/resolv.conf" ] || mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get -qq update
chroot "$root" apt-get -qq install -y --no-install-recommends -o Dpkg::Options::=--force-unsafe-io "$@"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
"""


def _lay(image: Tree, building: Path, root: Path) -> None:
    base = build(Tree(image.suite))
    command = ["unshare", "--mount", "sh", "-euc", _LAY, "sh", str(root), str(base), *image.packages]
    with (building / "log").open("w+b") as log:
        ran = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        if ran.returncode:
            log.seek(0)
            print(log.read().decode(errors="replace")[-2000:], flush=True)
            ran.check_returncode()
    _write(root, dict(image.files))


def _bootstrap(suite: str, root: Path) -> list[str]:
    mirror = _mirror()
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(_PACKAGES)}",
        # The tree is thrown away when anything goes wrong: no need to wait for the disk after every file.
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        '--aptopt=Acquire::Languages "none"',
        suite,
        str(root),
        *([mirror] if mirror else []),
    ]


def _mirror() -> str:
    """Where this host gets Debian from; nothing (mmdebstrap's own default) on a host that is no Debian."""
    if "ID=debian" not in Path("/etc/os-release").read_text().splitlines():
        return ""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        uri, release, component = line.split()
        # "bookworm", not "bookworm-security": the latter has another layout.
        if component == "main" and "-" not in release and "debian" in uri:
            return uri.rstrip("/")
    return ""


def _finish(root: Path) -> None:
    _write(root, _FILES)
    for unit in _MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    for left in (root / "etc/ssh").glob("ssh_host_*"):
        left.unlink()


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _digest(tree: Tree) -> str:
    layer = (tree.packages, tree.files, _LAY) if tree.packages else (tree.label, tree.files) if tree.label else ()
    recipe = repr((tree.suite, _PACKAGES, _LEFT_OUT, sorted(_FILES.items()), _MASKED, *layer))
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Build what is missing, all at once: they wait for the mirror most of the time. Says how long it took."""
    missing = [image for image in TREES if not image.built]
    if missing:
        print(f"building Debian {', '.join(image.suite for image in missing)} for test machines (once)", flush=True)
        begun = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(build, missing))
        print(f"  built in {images_folder()} in {time.monotonic() - begun:.0f} s", flush=True)
    for image in (PYTORCH, NVME):
        build(image)  # Some files over one of these.
