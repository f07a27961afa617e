"""Publish to an SNS topic. Mail subscribers get the text; queues, functions and endpoints get the JSON of webhooks.

https://docs.aws.amazon.com/sns/latest/api/API_Publish.html
"""

from __future__ import annotations

import json
import os
from typing import Any

from stoker.model.channel_address import topic_of
from stoker.notifications.events import Message
from stoker.notifications.json_body import body
from stoker.notifications.senders import STEP_TIMEOUT_S, NotSent, Send, SenderUnavailable

# SNS takes at most 256 KiB for a message with all its forms and attributes.
_MAX_BYTES = 250_000
_MAX_SUBJECT = 99
# Error codes of a governor that lacks permission or credentials: another governor may have them.
_LOCAL_REFUSALS = (
    "AuthorizationError",
    "AuthorizationErrorException",
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)


def open_topic(to: str) -> Send:
    """Return a sender for this topic, with the credentials that boto3 finds. Raises SenderUnavailable where boto3 is
    missing or its settings are unusable."""
    arn = topic_of(to)
    assert arn is not None
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            EndpointConnectionError,
            NoCredentialsError,
            PartialCredentialsError,
        )
    except ImportError:
        raise SenderUnavailable("SNS needs boto3; pip install 'stoker[aws]'") from None
    settings = Config(
        connect_timeout=STEP_TIMEOUT_S,
        read_timeout=STEP_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": 2},
        user_agent_extra="stoker",
    )
    try:
        session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
        client = session.client("sns", region_name=arn.split(":")[3], config=settings)
    except (BotoCoreError, ValueError) as error:
        raise SenderUnavailable(f"AWS's settings cannot be used: {error}") from None

    local_errors = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, EndpointConnectionError)

    def send(message: Message) -> None:
        # A FIFO topic drops repeated ids within five minutes, which is the lease of a sender (outbox.SENDING_LEASE).
        fifo = {"MessageGroupId": "stoker", "MessageDeduplicationId": message.id} if arn.endswith(".fifo") else {}
        try:
            client.publish(
                TopicArn=arn,
                Subject=_subject(message.title),
                Message=_sns_text(message),
                MessageStructure="json",
                MessageAttributes={"id": {"DataType": "String", "StringValue": message.id}},
                **fifo,
            )
        except ClientError as error:
            refused = error.response.get("Error", {}).get("Code", "") in _LOCAL_REFUSALS
            raise SenderUnavailable(str(error)) if refused else NotSent(str(error)) from None
        except local_errors as error:
            raise SenderUnavailable(str(error)) from None
        except BotoCoreError as error:
            raise NotSent(str(error)) from None

    return send


def _sns_text(message: Message) -> str:
    """The published text. The last events of too many are only counted, since each event is repeated for every kind of
    subscriber, and nested quotes grow."""
    tree = body(message)
    while len(text := json.dumps(_forms(tree, message))) > _MAX_BYTES and tree["events"]:
        count = min(len(tree["events"]) - 1, len(tree["events"]) * _MAX_BYTES // len(text))
        for dropped in tree["events"][count:]:
            tree["more"] = {**tree["more"], dropped["kind"]: tree["more"].get(dropped["kind"], 0) + 1}
        del tree["events"][count:]
    return text


def _forms(tree: dict[str, Any], message: Message) -> dict[str, str]:
    """The message for each kind of subscriber; `default` is for all other kinds."""
    data = json.dumps(tree)
    text = f"{message.title}\n\n{message.text}"
    return {"default": text, "sqs": data, "lambda": data, "http": data, "https": data, "firehose": data}


def _subject(title: str) -> str:
    """The subject in ASCII without control characters, as SNS requires."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in title)
    return f"[stoker] {plain}"[:_MAX_SUBJECT]
