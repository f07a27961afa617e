"""Check the inputs of a job before it is submitted, as far as this computer can, and make their paths absolute."""

# Links are not resolved: messages show the path that a person named.
# ruff: noqa: PTH100

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from stoker.model.errors import NoCredentials, StokerError, StoreDenied, StoreUnavailable, UserError
from stoker.model.offerings import Capabilities
from stoker.model.spec import Input, Spec
from stoker.store.base import ObjectNamesUnusable, parse_bucket_url
from stoker.submit.system_folders import check_input_folder

_BUCKETS = ("s3", "gs")


def localise_input(name: str, source: Input, spec: Spec, capabilities: Capabilities, folder: Path) -> Input:
    """An input with an absolute path. Asks no server. Raises UserError for an input that cannot be read."""
    text = source.source
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://").removeprefix("localhost"))
    elif "://" in text:
        if source.mode != "stream":
            _check_reached(name, text, spec, capabilities)
        return source
    path = Path(os.path.abspath(folder / Path(text).expanduser()))
    if not path.exists():
        raise UserError(f"inputs.{name}: {path} does not exist; name a folder, a file or a URL")
    if not path.is_file() and not path.is_dir():
        raise UserError(f"inputs.{name}: {path} is a pipe or a device; name a folder, a file or a URL")
    if path.is_file() and text.endswith("/"):
        raise UserError(f"inputs.{name}: {path} is a file; write it without the slash at the end")
    check_input_folder(name, path)
    _check_files(name, path, spec.nodes if source.shard else 1)
    return replace(source, source=str(path))


def check_readable(spec: Spec) -> None:
    """Check the buckets that this computer itself is going to read. Raises UserError where one denies access.

    A bucket that does not answer is no error: the node tries again.
    """
    from stoker.agent.inputs.source import InputSource, NothingThere

    for name, wanted in spec.inputs.items():
        if wanted.mode == "stream" or wanted.source.partition("://")[0] not in _BUCKETS:
            continue
        try:
            InputSource(wanted.source).find()
        except NothingThere as error:
            raise UserError(f"inputs.{name}: {error}; check the URL") from None
        except StoreDenied as error:
            _refuse_requester_pays(name, wanted.source)
            raise UserError(f"inputs.{name}: {error}") from None
        except (NoCredentials, ObjectNamesUnusable, UserError) as error:
            raise UserError(f"inputs.{name}: {error}") from None
        except StoreUnavailable:
            continue


def refuse_requester_pays(spec: Spec) -> None:
    """Raise UserError for inputs in buckets whose readers pay: machines would be denied them.

    Anything else that goes wrong here says nothing about the machines, which have credentials of their own.
    """
    from stoker.agent.inputs.source import InputSource

    for name, wanted in spec.inputs.items():
        if wanted.mode == "stream" or not wanted.source.startswith("s3://"):
            continue
        try:
            InputSource(wanted.source).find()
        except StoreDenied:
            _refuse_requester_pays(name, wanted.source)
        except StokerError:
            continue


def _refuse_requester_pays(name: str, url: str) -> None:
    if not url.startswith("s3://"):
        return
    from stoker.store.s3 import is_requester_pays

    if is_requester_pays(url):
        raise UserError(
            f"inputs.{name}: {url} is in a bucket whose readers pay for requests (Requester Pays), which Stoker does "
            f"not do for you; copy it: aws s3 cp --recursive --request-payer requester {url} s3://YOUR-BUCKET"
        )


def _check_files(name: str, path: Path, nodes: int) -> None:
    """Raise UserError where there is no file, or there are fewer files than nodes that share them."""
    try:
        found = _count_files(path, most=nodes) if path.is_dir() else 1
    except OSError as error:
        raise UserError(f"inputs.{name}: {error.filename} cannot be read: {error.strerror}") from None
    if not found:
        raise UserError(f"inputs.{name}: there is no file in {path}")
    if found < nodes:
        what = f"{found} file{'s' if found != 1 else ''} at {path} cannot be shared out among {nodes} nodes"
        raise UserError(f"inputs.{name}.shard: {what}; name a folder with more of them, or leave `shard` out")


def _count_files(folder: Path, *, most: int) -> int:
    """The number of files, counted up to `most`. A link to a folder counts as `most`: it may hold any number."""

    def fail(error: OSError) -> None:
        raise error

    found = 0
    for path, folders, files in os.walk(folder, onerror=fail):
        found += len(files)
        if found >= most or any(Path(path, one).is_symlink() for one in folders):
            return most
    return found


def _check_reached(name: str, url: str, spec: Spec, capabilities: Capabilities) -> None:
    """Raise UserError for a bucket without credentials on the machines, and for a URL that is no bucket."""
    scheme = url.partition("://")[0]
    if scheme not in _BUCKETS:
        forms = "s3://bucket/folder or gs://bucket/folder"
        raise UserError(f"inputs.{name}: {scheme}:// cannot be copied; give {forms}, or pass the URL with mode: stream")
    try:
        parse_bucket_url(url)
    except UserError as error:
        raise UserError(f"inputs.{name}: {error}") from None
    if capabilities.stores and scheme not in capabilities.stores:
        reached = " and ".join(f"{one}://" for one in capabilities.stores)
        raise UserError(
            f"inputs.{name}: machines on {spec.resources.provider} have credentials for {reached}, and none for "
            f"{scheme}://; copy the data there first, or pass the URL with mode: stream"
        )
