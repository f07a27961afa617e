"""Machine images by alias, family or name. Compute Engine resolves a family to its newest image itself: a launch needs
no lookup."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stoker.model.errors import UserError
from stoker.providers.gce import catalog
from stoker.providers.image_info import Python
from stoker.providers.machine_types import Arch

DEFAULT = "ubuntu/24.04"
DEFAULT_GPU = "dlvm/pytorch"
DEFAULT_TPU = "tpu/ubuntu-22.04"
ALIASES = (
    "dlvm/pytorch",
    "dlvm/pytorch-VERSION",
    "dlvm/base",
    "ubuntu/22.04",
    "ubuntu/24.04",
    "debian/12",
    "debian/13",
    DEFAULT_TPU,
)
_DEEP_LEARNING = "deeplearning-platform-release"
# The families of Google's Deep Learning VM that are still maintained:
# https://cloud.google.com/deep-learning-vm/docs/images
_DLVM = {
    "pytorch": "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
    "pytorch-2.9": "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
    "pytorch-2.7": "pytorch-2-7-cu128-ubuntu-2204-nvidia-570",
    "base": "common-cu129-ubuntu-2404-nvidia-580",
}
# Families of the distributions, by processor.
_PLAIN: dict[str, tuple[str, dict[Arch, str]]] = {
    "ubuntu/22.04": ("ubuntu-os-cloud", {"x86_64": "ubuntu-2204-lts", "arm64": "ubuntu-2204-lts-arm64"}),
    "ubuntu/24.04": ("ubuntu-os-cloud", {"x86_64": "ubuntu-2404-lts-amd64", "arm64": "ubuntu-2404-lts-arm64"}),
    "debian/12": ("debian-cloud", {"x86_64": "debian-12", "arm64": "debian-12-arm64"}),
    "debian/13": ("debian-cloud", {"x86_64": "debian-13", "arm64": "debian-13-arm64"}),
    # With the TPU's driver; libtpu comes with JAX or PyTorch/XLA.
    DEFAULT_TPU: (
        "ubuntu-os-accelerator-images",
        dict.fromkeys(("x86_64", "arm64"), "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"),
    ),
}
# The Python of each distribution.
_PYTHONS: dict[str, Python] = {
    "debian-12": (3, 11),
    "debian-13": (3, 13),
    "ubuntu-2204": (3, 10),
    "ubuntu-accel-2204": (3, 10),
    "ubuntu-2404": (3, 12),
}
# The sizes of the images' disks. Those of the Deep Learning VM change, and stay below this.
_PLAIN_GIB = 10
_DLVM_GIB = 100
_PROJECT = r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]*"
_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_LINK = re.compile(rf"(https?://[^/]+/compute/[^/]+/)?(?P<path>(projects/{_PROJECT}/)?global/images/(family/)?{_NAME})")
_FAMILY = re.compile(rf"family:((?P<project>{_PROJECT})/)?(?P<family>{_NAME})")
_IMAGE = re.compile(rf"((?P<project>{_PROJECT})/)?(?P<name>{_NAME})")


@dataclass(frozen=True)
class GceImage:
    """An image as the source of a disk in a request. Without a project, it belongs to the machines' own project."""

    source: str

    @property
    def gib(self) -> int | None:
        """The size of the image's disk, which may be a little less; None for images of others."""
        if self.installs_driver:
            return _DLVM_GIB
        return _PLAIN_GIB if is_known(self.source) else None

    @property
    def installs_driver(self) -> bool:
        """Return whether the image installs the GPU driver itself when the metadata ask for it."""
        return f"projects/{_DEEP_LEARNING}/" in self.source


def find(wanted: str, arch: Arch) -> GceImage:
    """Find an image by an alias, a link, `family:PROJECT/FAMILY`, or `PROJECT/IMAGE`.

    Raises UserError for an invalid name, and for an unknown alias.
    """
    alias = _alias(wanted, arch)
    if alias is not None:
        return GceImage(alias)
    problem = f"resources.image: there is no {wanted}; known are {', '.join(ALIASES)}, family:PROJECT/FAMILY"
    if re.match(r"(dlvm|ubuntu|debian|tpu)/", wanted):
        raise UserError(f"{problem} or PROJECT/IMAGE")
    link, family, image = _LINK.fullmatch(wanted), _FAMILY.fullmatch(wanted), _IMAGE.fullmatch(wanted)
    if link is not None:
        return GceImage(link["path"])
    if family is not None:
        return GceImage(_of(family["project"], f"family/{family['family']}"))
    if image is not None:
        return GceImage(_of(image["project"], image["name"]))
    raise UserError(f"{problem} or PROJECT/IMAGE")


def default(arch: Arch, gpus: int, gpu: str | None = None) -> GceImage:
    """The image of a job that names none: with drivers and PyTorch where there are GPUs, with drivers for TPUs."""
    return find(_default_name(gpus, gpu), arch)


def _default_name(gpus: int, gpu: str | None) -> str:
    if not gpus:
        return DEFAULT
    return DEFAULT_TPU if catalog.is_tpu(gpu or "") else DEFAULT_GPU


def is_known(source: str) -> bool:
    """Return whether an alias resolves to this image, so that it is known to exist."""
    plain = {_of(project, f"family/{family}") for project, families in _PLAIN.values() for family in families.values()}
    return source in plain or source in {_of(_DEEP_LEARNING, f"family/{family}") for family in _DLVM.values()}


def python_of(wanted: str | None, gpus: int, gpu: str | None = None) -> Python | None:
    """The Python of an alias's distribution, beside which newer ones may be installed; None for other images."""
    source = _alias(wanted or _default_name(gpus, gpu), "x86_64") or ""
    return next((python for part, python in _PYTHONS.items() if part in source), None)


def _alias(wanted: str, arch: Arch) -> str | None:
    if wanted in _PLAIN:
        project, families = _PLAIN[wanted]
        return _of(project, f"family/{families[arch]}")
    kind, slash, name = wanted.partition("/")
    if kind == "dlvm" and (not slash or name in _DLVM):
        return _of(_DEEP_LEARNING, f"family/{_DLVM[name or 'pytorch']}")
    return None


def _of(project: str | None, image: str) -> str:
    return f"projects/{project}/global/images/{image}" if project else f"global/images/{image}"
