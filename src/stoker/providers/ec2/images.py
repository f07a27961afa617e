"""Machine images by alias. EC2 itself resolves `resolve:ssm:…`, so no look-up precedes a launch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stoker.model.errors import UserError
from stoker.providers.image_info import Python

Arch = Literal["x86_64", "arm64"]

_ID = re.compile(r"ami-[0-9a-z]+")
_DLAMI = re.compile(r"dlami/pytorch-(?P<version>\d+\.\d+)(-ubuntu-(?P<ubuntu>\d\d\.\d\d))?")
# The sizes of the images' disks. Those of the Deep Learning AMIs change, and stay below this: "Recommended storage size
# for Base DLAMI on EC2 console is 100 GB", https://github.com/aws/deep-learning-containers/pull/2425
_PLAIN_GIB = 8
_DLAMI_GIB = 100
# The newest version with a documented public parameter; `dlami/pytorch-2.8` and the like name others.
_PYTORCH = "2.9"
_DLAMI_UBUNTU = "24.04"
_DEBIAN_ARCH: dict[Arch, str] = {"x86_64": "amd64", "arm64": "arm64"}

# The Python of each distribution, by a part of its parameter's name.
_PYTHONS: dict[str, Python] = {
    "/debian/release/12/": (3, 11),
    "/debian/release/13/": (3, 13),
    "/ubuntu/server/22.04/": (3, 10),
    "/ubuntu/server/24.04/": (3, 12),
    "-ubuntu-22.04/": (3, 10),
    "-ubuntu-24.04/": (3, 12),
    "/ubuntu-24.04/": (3, 12),
}

DEFAULT = "ubuntu/24.04"
DEFAULT_GPU = "dlami/pytorch"
# The default image by the maker of the accelerators. Machines with those of other makers need an image of the user's.
_DEFAULTS = {"nvidia": DEFAULT_GPU, "aws": "dlami/neuron", "habana": "dlami/habana"}
# Accelerators that AWS's images support no longer, by the beginning of their names followed by nothing or a size.
# Inferentia: "Neuron DLAMIs released with version 2.26.1 no longer support Inf1 instance types",
# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/dlami/index.html
# V100: its machines are not among the "supported_ec2_instances" of the images with NVIDIA's open driver,
# https://docs.aws.amazon.com/dlami/latest/devguide/appendix-ami-release-notes.html
_UNSERVED = ("Inferentia", "V100")
_NEURON = "/aws/service/neuron/dlami/{kind}/ubuntu-{ubuntu}/latest/image_id"
_NEURON_UBUNTU = "24.04"
_NEURON_KINDS = re.compile(r"dlami/neuron(-(?P<kind>base|(pytorch|jax)-\d+\.\d+))?")
# AWS publishes no parameter for this one.
_HABANA = "Deep Learning AMI Habana PyTorch*(Ubuntu*"
ALIASES = (
    "dlami/pytorch",
    "dlami/pytorch-VERSION",
    "dlami/base",
    "dlami/neuron",
    "dlami/neuron-pytorch-VERSION",
    "dlami/neuron-jax-VERSION",
    "dlami/neuron-base",
    "dlami/habana",
    "ubuntu/22.04",
    "ubuntu/24.04",
    "debian/12",
    "debian/13",
    "ssm:/any/parameter",
)


# The owners whose images are found by a bare name: anybody may publish an image of any name. Those of Debian and
# Canonical are `amazon`'s too, by EC2's alias. The other aliases that DescribeImages knows have to be written, as
# `aws-marketplace/NAME`.
TRUSTED_OWNERS = ("self", "amazon")
_OWNER_ALIASES = (*TRUSTED_OWNERS, "aws-backup-vault", "aws-marketplace")
_ACCOUNT = re.compile(r"[0-9]{12}")


@dataclass(frozen=True)
class Ec2Image:
    """The image of a request. `name` is set if the id must be looked up first, by the image's name among its owners'.

    `root` is its root device, and a disk of `gib` holds it; None if only EC2 knows them.
    """

    id: str | None
    name: str | None = None
    root: str | None = None
    gib: int | None = None
    owners: tuple[str, ...] = ()


def find(wanted: str, arch: Arch) -> Ec2Image:
    """The image for an id, an alias, a parameter or a name. Raises UserError for an unknown alias."""
    if _ID.fullmatch(wanted):
        return Ec2Image(wanted)
    if wanted.startswith("ssm:"):
        return Ec2Image(f"resolve:ssm:{wanted.removeprefix('ssm:')}")
    if wanted == _DEFAULTS["habana"]:
        return Ec2Image(None, name=_HABANA, owners=("amazon",))
    parameter, root = _alias(wanted, arch)
    if parameter is not None:
        return Ec2Image(f"resolve:ssm:{parameter}", root=root, gib=_DLAMI_GIB if "dlami" in wanted else _PLAIN_GIB)
    # Canonical's images are called `ubuntu/images/…`.
    if re.match(r"(dlami|ubuntu|debian)/(?!images)", wanted):
        raise UserError(f"resources.image: there is no {wanted}; known are {', '.join(ALIASES)}, an id, or a name")
    return _named(wanted)


def _named(wanted: str) -> Ec2Image:
    """The image for `NAME` or `OWNER/NAME`. Names of images may contain slashes themselves."""
    owner, slash, name = wanted.partition("/")
    if not slash or not (owner.isdecimal() or owner in _OWNER_ALIASES):
        return Ec2Image(None, name=wanted, owners=TRUSTED_OWNERS)
    if owner.isdecimal() and not _ACCOUNT.fullmatch(owner):
        raise UserError(f"resources.image: the owner {owner} has {len(owner)} digits; an account id has 12")
    if not name:
        raise UserError(f"resources.image: {wanted} names an owner and no image; write OWNER/NAME")
    return Ec2Image(None, name=name, owners=(owner,))


def default(arch: Arch, gpus: int, gpu: str | None = None) -> Ec2Image:
    """The image for a job that names none: with drivers and frameworks for the machine's accelerators, if it has
    any."""
    return find(default_alias(gpus, gpu), arch)


def default_alias(gpus: int, gpu: str | None) -> str:
    """The alias of the default image for machines with these accelerators."""
    return _DEFAULTS[_maker(gpu or "")] if gpus else DEFAULT


def driver_problem(image: str | None, gpu: str, maker: str) -> str:
    """The reason why a job's image, or the default image, has no drivers for these accelerators; empty if it has them,
    or if that is not known."""
    served = gpu.partition("-")[0] not in _UNSERVED
    if image is None:
        if maker in _DEFAULTS and served:
            return ""
        return "and no default image has drivers for it; set resources.image to one that has them"
    has = _drivers(image)
    if not has or (has == maker and served):
        return ""
    better = _DEFAULTS.get(maker) if served else None
    return f"and {image} has no drivers for it; set resources.image to {better or 'an image that has them'}"


def python_of(wanted: str | None, gpus: int, gpu: str | None = None) -> Python | None:
    """The Python of the distribution behind an alias, which may have newer ones as well; None for other images."""
    parameter, _ = _alias(wanted or default_alias(gpus, gpu), "x86_64")
    return next((python for part, python in _PYTHONS.items() if part in (parameter or "")), None)


def _maker(gpu: str) -> str:
    """The maker of accelerators for which there is a default image."""
    if gpu.startswith(("Inferentia", "Trainium")):
        return "aws"
    return "habana" if gpu.startswith("Gaudi") else "nvidia"


def _drivers(alias: str) -> str:
    """The maker of the accelerators that the image behind an alias has drivers for; empty if none or unknown."""
    if _NEURON_KINDS.fullmatch(alias):
        return "aws"
    if alias == _DEFAULTS["habana"]:
        return "habana"
    return "nvidia" if alias == "dlami" or alias.startswith("dlami/") else ""


def _alias(wanted: str, arch: Arch) -> tuple[str | None, str | None]:
    debian_arch = _DEBIAN_ARCH[arch]
    if wanted in ("dlami", "dlami/pytorch"):
        return _dlami(f"oss-nvidia-driver-gpu-pytorch-{_PYTORCH}", _DLAMI_UBUNTU, arch), "/dev/sda1"
    if wanted == "dlami/base":
        return _dlami("base-oss-nvidia-driver-gpu", "22.04", arch), "/dev/sda1"
    neuron = _NEURON_KINDS.fullmatch(wanted)
    if neuron and arch == "x86_64":
        return _NEURON.format(kind=neuron["kind"] or "multi-framework", ubuntu=_NEURON_UBUNTU), "/dev/sda1"
    match = _DLAMI.fullmatch(wanted)
    if match:
        version = match["version"]
        ubuntu = match["ubuntu"] or ("24.04" if _newer(version, "2.8") else "22.04")
        return _dlami(f"oss-nvidia-driver-gpu-pytorch-{version}", ubuntu, arch), "/dev/sda1"
    family, _, version = wanted.partition("/")
    if family == "ubuntu" and version in ("22.04", "24.04"):
        disk = "ebs-gp2" if version == "22.04" else "ebs-gp3"
        path = f"/aws/service/canonical/ubuntu/server/{version}/stable/current/{debian_arch}/hvm/{disk}/ami-id"
        return path, "/dev/sda1"
    if family == "debian" and version in ("12", "13"):
        return f"/aws/service/debian/release/{version}/latest/{debian_arch}", "/dev/xvda"
    return None, None


def _dlami(kind: str, ubuntu: str, arch: Arch) -> str:
    return f"/aws/service/deeplearning/ami/{arch}/{kind}-ubuntu-{ubuntu}/latest/ami-id"


def _newer(version: str, other: str) -> bool:
    return tuple(map(int, version.split("."))) >= tuple(map(int, other.split(".")))
