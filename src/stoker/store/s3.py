"""A bucket on S3, or on a compatible service, through obstore."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from stoker.model.errors import NoCredentials, StoreDenied, StoreError, UserError
from stoker.store.base import parse_bucket_url
from stoker.store.bucket import BucketStore, open_pair
from stoker.store.obstore_errors import first_line, translated

_REGION_HEADER = "x-amz-bucket-region"
_ASK_S = 10.0


class WrongRegion(StoreDenied):
    """The bucket is in another region than the request."""


def open_s3(bucket: str, prefix: str, *, region: str | None = None, request_payer: bool = False) -> BucketStore:
    """Open the bucket, with endpoint, credentials and (unless given) region from the environment. Makes no request.

    With `request_payer`, requests say that the caller pays for them.
    """
    endpoint = endpoint_address()
    options: dict[str, Any] = {"region": region} if region else {}
    if request_payer:
        options["request_payer"] = True
    if endpoint:
        # Custom endpoints seldom have a DNS name for every bucket.
        options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
    provider = _profile_credentials()
    if provider is not None:
        options["credential_provider"] = provider
    elif metadata := os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        # Every other SDK reads this variable; obstore has its own name for it. Used if there are no keys.
        options["metadata_endpoint"] = metadata.rstrip("/")
    url = f"s3://{bucket}/{prefix}".rstrip("/")
    quick, bulk = open_pair(
        url,
        lambda more: S3Store(bucket, prefix=prefix or None, **options, **more),
        allow_http=allowed or (endpoint or "").startswith("http://"),
    )
    return S3Bucket(url, quick=quick, bulk=bulk)


def endpoint_address() -> str | None:
    """URL of a custom endpoint, if set."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def bucket_region(bucket: str) -> str | None:
    """The region of a bucket, which S3 reports to anonymous requests to any region; None if it does not."""
    # Imported here because they are seldom needed, and slow to import.
    import urllib.error
    import urllib.request

    endpoint = endpoint_address()
    # The bucket is in the path, because a host name with dots in the bucket has no certificate.
    request = urllib.request.Request(f"{endpoint or 'https://s3.amazonaws.com'}/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            return str(answer.headers.get(_REGION_HEADER) or "") or None
    except urllib.error.HTTPError as error:
        # Refusals and redirects also have the header.
        with error:
            return str(error.headers.get(_REGION_HEADER) or "") or None
    except OSError:
        return None


def is_requester_pays(url: str, region: str | None = None) -> bool:
    """Return True for a bucket that denied a request and grants it to one that says that its caller pays.

    "Requester Pays" buckets answer 403 to requests without the header `x-amz-request-payer`:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/ObjectsinRequesterPaysBuckets.html
    """
    _, bucket, prefix = parse_bucket_url(url)
    try:
        next(iter(open_s3(bucket, prefix, region=region, request_payer=True).list("")), None)
    except StoreError:
        return False
    return True


class S3Bucket(BucketStore):
    """A `Store` on S3."""

    def _translated(self, error: Exception) -> StoreError:
        text = str(error)
        if "Received redirect" in text:
            return WrongRegion(f"{self.url} is in another region; set AWS_REGION to the bucket's")
        if "169.254.169.254" in text or "169.254.170." in text:
            return NoCredentials(
                f"{self.url}: no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE "
                "with boto3 installed"
            )
        return translated(error, self.url)


def _profile_credentials() -> object | None:
    """Credentials from `~/.aws`, which obstore does not read; None if obstore finds others (keys, roles, metadata)."""
    own = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in own) or any(
        name.startswith("AWS_CONTAINER_CREDENTIALS_") for name in os.environ
    ):
        return None
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    profile = os.environ.get("AWS_PROFILE")
    if not profile and not any(Path(file).expanduser().is_file() for file in files):
        return None
    if importlib.util.find_spec("boto3") is None:
        if profile:
            raise UserError(f"AWS_PROFILE={profile} needs boto3: install it, or set AWS_ACCESS_KEY_ID")
        return None
    try:
        provider: object = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()
    except Exception as error:
        # botocore has many errors, and all of them here are about the user's files.
        if profile:
            raise UserError(f"AWS_PROFILE={profile} gives no credentials: {first_line(error)}") from error
        return None
    return provider
