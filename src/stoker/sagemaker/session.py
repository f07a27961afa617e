"""The stand-in for `sagemaker.session`: sending data to a bucket before `fit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.inputs import s3_input

__all__ = ["Session", "get_execution_role", "s3_input"]

# Where AWS's own tools look for the region.
_REGION = ("AWS_REGION", "AWS_DEFAULT_REGION")


def get_execution_role(*_: object, **__: object) -> None:
    """None: jobs of Stoker need no role of SageMaker's."""


class Session:
    """A bucket and a way to send files to it, as scripts use `sagemaker.Session`. Clients and limits are ignored."""

    def __init__(
        self,
        boto_session: Any = None,
        *_: object,
        default_bucket: str | None = None,
        default_bucket_prefix: str | None = None,
        **__: object,
    ) -> None:
        self.boto_session = boto_session
        self.default_bucket_prefix = default_bucket_prefix
        self._bucket = default_bucket

    @property
    def boto_region_name(self) -> str | None:
        """The region of the given boto3 session, or of the environment."""
        given = getattr(self.boto_session, "region_name", None)
        return given or next((os.environ[name] for name in _REGION if os.environ.get(name)), None)

    def default_bucket(self) -> str:
        """The bucket that the session was given, else the store's. Raises BadArgument without one."""
        store = os.environ.get("STOKER_STORE", "")
        if self._bucket is None and not store.startswith("s3://"):
            raise BadArgument(
                "default_bucket: no bucket is named; set STOKER_STORE to one, or give Session(default_bucket='NAME')"
            )
        return self._bucket or store.removeprefix("s3://").partition("/")[0]

    def upload_data(
        self,
        path: str | os.PathLike[str],
        bucket: str | None = None,
        key_prefix: str = "data",
        *_: object,
        **__: object,
    ) -> str:
        """Send a file or folder to `s3://BUCKET/KEY_PREFIX`, and return its URL. Raises UserError for a missing one."""
        from stoker.store.base import open_store

        source = Path(path).expanduser()
        if not source.exists():
            raise BadArgument(f"upload_data: there is no file or folder {source}")
        if bucket is None and self.default_bucket_prefix:
            key_prefix = f"{self.default_bucket_prefix}/{key_prefix}"
        url = f"s3://{bucket or self.default_bucket()}/{key_prefix.strip('/')}".rstrip("/")
        store = open_store(url)
        files = [one for one in source.rglob("*") if one.is_file()] if source.is_dir() else [source]
        root = source if source.is_dir() else source.parent
        for file in sorted(files):
            store.put_file(file, lambda _, file=file: file.relative_to(root).as_posix(), replace=True)  # type: ignore[misc]
        return url if source.is_dir() else f"{url}/{source.name}"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Session: there is no {name!r}; Stoker's has default_bucket and upload_data")
