"""The zip that a cloud runs: the installed Stoker, without the parts for people and machines, and its dependencies.

    Lambda            stoker/, obstore for its processor, Apprise and its dependencies, and boto3's newest model of
                      SageMaker; boto3 itself is part of Lambda
    Cloud Run         stoker/, main.py, and requirements.txt with the versions that are installed here

The same sources give the same bytes, so that the digest shows whether the deployment has changed.
"""

from __future__ import annotations

import hashlib
import io
import platform
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import stoker
from stoker.deploy import aws_models
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.store.base import Store
from stoker.submit.agent_bundle import NoAgentAvailable, obstore_files

# Lambda's processors by Python's names of this computer's. For any other computer, the more common one is used.
_PROCESSORS = {"x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_USUAL = "x86_64"
# obstore's wheel for this Python serves every newer one.
_PYTHON = "cp311"

# Folders of this package that no governor imports.
_NOT_GOVERNING = ("testing/", "web/", "cli/", "sagemaker/")
_NOTIFYING = (
    "apprise",
    "requests",
    "requests-oauthlib",
    "oauthlib",
    "urllib3",
    "idna",
    "certifi",
    "charset-normalizer",
    "Markdown",
)
# For the policy file.
_ALWAYS = ("PyYAML",)
_GOOGLE = ("obstore", "PyYAML", "httpx", "google-auth")
_NEVER = ("/i18n/", "/tests/", "__pycache__")
_NO_APPRISE = ("notifications by Apprise: not installed here; pip install 'stoker[notify]'",)
_UNKNOWN = "(digest)"
# The earliest time that a zip file can hold.
_DATE = (1980, 1, 1, 0, 0, 0)

_MAIN = b'''"""The governor of a Stoker store, as a Cloud Run function."""

from stoker.deploy.gcp_entry_point import on_event, wake

__all__ = ["on_event", "wake"]
'''


@dataclass(frozen=True)
class Package:
    """A zip. `digest` is its SHA-256; `lacking` lists missing optional parts, a line each. Where it is not `whole`, a
    part has to be fetched first and the digest is not known; such a package is never deployed."""

    data: bytes
    processor: str
    lacking: tuple[str, ...] = ()
    whole: bool = True

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest() if self.whole else _UNKNOWN

    @property
    def described(self) -> str:
        """A description in place of the bytes, for a dry run."""
        return f"{len(self.data)} bytes, sha256 {self.digest}" if self.whole else "(obstore is fetched first)"


def send(store: Store, package: Package, say: Callable[[str], None]) -> None:
    """Put the package into the store, unless it is there."""
    key = keys.deployed_package(package.digest)
    if store.head(key) is None:
        store.put(key, package.data)
        say(f"sent {key}")


def delete_others(store: Store, package: Package) -> None:
    """Delete the packages of earlier deployments."""
    key = keys.deployed_package(package.digest)
    store.delete([meta.key for meta in store.list(keys.DEPLOYED) if meta.key.endswith(".zip") and meta.key != key])


def processor() -> str:
    """The processor of the package: this computer's, whose obstore is installed."""
    return _PROCESSORS.get(platform.machine(), _USUAL)


def for_lambda(*, offline: bool = False) -> Package:
    """Build the package for Lambda. With `offline` nothing is fetched, so that it may not be whole.

    Raises UserError where obstore is not available for its processor.
    """
    arch = processor()
    files, whole = {**_stoker_files(), **aws_models.files()}, True
    try:
        files |= obstore_files(f"{_PYTHON}-{arch}", offline)
    except NoAgentAvailable as error:
        if not offline:
            why = str(error).rpartition("; ")[0]
            raise UserError(
                f"the function's package: {why}; see that pip reaches its index, or deploy from Linux with Python 3.11"
            ) from error
        whole = False
    lacking: tuple[str, ...] = ()
    for name in (*_ALWAYS, *_NOTIFYING):
        try:
            files |= _pure(name)
        except metadata.PackageNotFoundError:
            lacking = _NO_APPRISE
    return Package(_zipped(files), arch, lacking, whole)


def for_cloud_run() -> Package:
    """Build the package for Cloud Run."""
    files = _stoker_files()
    files["main.py"] = _MAIN
    lacking: tuple[str, ...] = ()
    wanted = ["functions-framework>=3.8,<4"]
    for name in (*_GOOGLE, "apprise"):
        try:
            wanted.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lacking = _NO_APPRISE
    files["requirements.txt"] = "".join(f"{line}\n" for line in wanted).encode()
    return Package(_zipped(files), "any", lacking)


def _stoker_files() -> dict[str, bytes]:
    root = Path(stoker.__file__).parent
    found: dict[str, bytes] = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith(_NOT_GOVERNING) and "__pycache__" not in name:
            found[f"stoker/{name}"] = path.read_bytes()
    return found


def _pure(distribution: str) -> dict[str, bytes]:
    """The files of an installed package, without compiled ones: each of these packages works without them."""
    found: dict[str, bytes] = {}
    for file in metadata.distribution(distribution).files or ():
        name = file.as_posix()
        wanted = name.endswith((".py", ".pem", "/METADATA")) or "licen" in name.lower()
        if wanted and not name.startswith("..") and not any(part in name for part in _NEVER):
            found[name] = Path(str(file.locate())).read_bytes()
    return found


def _zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()
