"""What SageMaker moves between S3 and its hosts: channels, and the copy of the checkpoint folder."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.sagemaker.server import REGION
from tests.support.servers import S3Server

_LOOK_S = 0.1


class Bucket:
    """S3 as SageMaker uses it."""

    def __init__(self, s3: S3Server) -> None:
        self._s3 = s3

    def fetch(self, url: str, target: Path, number: int = 0, of: int = 1) -> int:
        """Bring the objects whose names begin with this URL, or every `of`-th of them; return how many there are.

        "If you choose S3Prefix, S3Uri identifies a key name prefix. SageMaker uses all objects that match the specified
        key name prefix"; "ShardedByS3Key. If there are n ML compute instances launched for a training job, each
        instance gets approximately 1/n of the number of S3 objects" (API reference, S3DataSource). An object lies at
        its own name, what is below a folder at its path from there, with or without a slash at the URL's end (so does
        the SDK's local mode: `sagemaker.utils.download_folder`).
        """
        client = self._client()
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        keys = [key for key in self._list(client, bucket, prefix) if not key.endswith("/")]
        for key in sorted(keys)[number::of]:
            base = prefix if key.startswith(f"{prefix.rstrip('/')}/") else prefix.rpartition("/")[0]
            path = target / key.removeprefix(base).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, key, str(path))
        return len(keys)

    def send(self, folder: Path, url: str, known: dict[str, tuple[int, int]]) -> None:
        """Make the objects below this URL what is in the folder now. `known` are the files that were sent before.

        "SageMaker also writes new checkpoints from the container to S3 during training. If a checkpoint is deleted in
        the SageMaker container, it will also be deleted in the S3 folder"
        (docs.aws.amazon.com/sagemaker/latest/dg/model-checkpoints.html).
        """
        client = self._client()
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        found: dict[str, tuple[int, int]] = {}
        for path in sorted(folder.rglob("*")):
            with suppress(FileNotFoundError):  # A file may go at any time.
                if path.is_symlink() or not path.is_file():
                    continue
                name, stamp = str(path.relative_to(folder)), (path.stat().st_size, path.stat().st_mtime_ns)
                if known.get(name) != stamp:
                    client.put_object(Bucket=bucket, Key=f"{prefix.rstrip('/')}/{name}", Body=path.read_bytes())
                found[name] = stamp
        for name in known.keys() - found.keys():
            client.delete_object(Bucket=bucket, Key=f"{prefix.rstrip('/')}/{name}")
        known.clear()
        known.update(found)

    def _list(self, client: Any, bucket: str, prefix: str) -> list[str]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self._s3.endpoint,
            region_name=REGION,
            aws_access_key_id=self._s3.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self._s3.env["AWS_SECRET_ACCESS_KEY"],
        )


class CheckpointCopy(threading.Thread):
    """Keeps a host's checkpoint folder and its copy in S3 the same until `end`.

    "Existing checkpoints in S3 are written to the SageMaker container at the start of the job … Checkpoints added to
    the S3 folder after the job has started are not copied to the training container" (model-checkpoints, as above):
    they are there when this is made.
    """

    def __init__(self, bucket: Bucket, folder: Path, url: str) -> None:
        super().__init__(name=f"checkpoints of {folder}", daemon=True)
        self._bucket, self._folder, self._url = bucket, folder, url
        self._known: dict[str, tuple[int, int]] = {}
        self._over = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        bucket.fetch(f"{url.rstrip('/')}/", folder)
        self.start()

    def run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._bucket.send(self._folder, self._url, self._known)
        self._bucket.send(self._folder, self._url, self._known)

    def end(self) -> None:
        """Copy what changed last, and stop."""
        self._over.set()
        self.join(timeout=60)
