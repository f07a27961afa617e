"""KMS keys of encrypted buckets, topics, secrets and volumes: their form, and the statements that allow their use."""

from __future__ import annotations

import re
from typing import Any

from stoker.model.errors import UserError
from stoker.providers.ec2.statements import allow

_KEY = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+")
# To read and write objects, also in parts:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html
_OBJECT_ACTIONS = ["kms:Decrypt", "kms:GenerateDataKey"]
# https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html lists the actions for a launch;
# encrypted buckets, topics and secrets need fewer.
_LAUNCH_ACTIONS = [
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
]

# "Client.InternalError: A client error caused the instance to terminate on launch": the launcher may not use the key.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
LAUNCH_ADVICE = (
    "; where a disk is encrypted with a KMS key, its launcher needs kms:CreateGrant, kms:Decrypt and "
    "kms:GenerateDataKeyWithoutPlaintext on that key (`stoker iam ec2 --kms-key ARN`)"
)


def check_keys(keys: tuple[str, ...], option: str = "--kms-key") -> None:
    """Raise UserError for a key in a wrong form. An alias may stand for another key tomorrow, so policies name none."""
    for each in keys:
        if _KEY.fullmatch(each) is None:
            raise UserError(f"{option}: {each!r} is no key; give its ARN, such as arn:aws:kms:REGION:ACCOUNT:key/ID")


def for_objects(keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Allow to read and write what is encrypted with these keys."""
    return [allow("UseKeys", _OBJECT_ACTIONS, list(keys))] if keys else []


def for_governors(keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Allow the use of these keys, and grants to AWS itself, which needs them for volumes: no other grants."""
    if not keys:
        return []
    for_aws = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [
        allow("UseKeys", _LAUNCH_ACTIONS, list(keys)),
        allow("LendKeys", "kms:CreateGrant", list(keys), for_aws),
    ]
