"""A topic of SNS. People who subscribed by mail read words; queues, functions and endpoints get the JSON of webhooks.

https://docs.aws.amazon.com/sns/latest/api/API_Publish.html
"""

from __future__ import annotations

import json
import os
from typing import Any

from stoker.model.channel_address import topic_of
from stoker.notifications.events import Letter
from stoker.notifications.json_body import body
from stoker.notifications.senders import TIMEOUT_S, NotHere, NotSent, Send

# A message with all its forms has 256 KiB at most, and its attributes count, too.
_MOST_BYTES = 250_000
_MOST_SUBJECT = 99
# This computer may not, or says the wrong name: another may.
_NOT_MINE = (
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
    """What publishes to this topic, with the credentials that boto3 finds. Raises NotHere without it."""
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
        raise NotHere("SNS needs boto3; pip install 'stoker[aws]'") from None
    settings = Config(
        connect_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": 2},
        user_agent_extra="stoker",
    )
    try:
        session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
        client = session.client("sns", region_name=arn.split(":")[3], config=settings)
    except (BotoCoreError, ValueError) as error:
        raise NotHere(f"AWS's settings cannot be used: {error}") from None

    keyless = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, EndpointConnectionError)

    def send(letter: Letter) -> None:
        # A FIFO topic drops what it has seen within five minutes, which is how long a sender has.
        fifo = {"MessageGroupId": "stoker", "MessageDeduplicationId": letter.id} if arn.endswith(".fifo") else {}
        try:
            client.publish(
                TopicArn=arn,
                Subject=_subject(letter.title),
                Message=_message(letter),
                MessageStructure="json",
                MessageAttributes={"id": {"DataType": "String", "StringValue": letter.id}},
                **fifo,
            )
        except ClientError as error:
            refused = error.response.get("Error", {}).get("Code", "") in _NOT_MINE
            raise NotHere(str(error)) if refused else NotSent(str(error)) from None
        except keyless as error:
            raise NotHere(str(error)) from None
        except BotoCoreError as error:
            raise NotSent(str(error)) from None

    return send


def _message(letter: Letter) -> str:
    """What is published. The last events of too many are only counted: each is in it once for every kind of
    subscriber, and quotes within quotes grow."""
    tree = body(letter)
    while len(message := json.dumps(_forms(tree, letter))) > _MOST_BYTES and tree["events"]:
        keep = min(len(tree["events"]) - 1, len(tree["events"]) * _MOST_BYTES // len(message))
        for dropped in tree["events"][keep:]:
            tree["more"] = {**tree["more"], dropped["kind"]: tree["more"].get(dropped["kind"], 0) + 1}
        del tree["events"][keep:]
    return message


def _forms(tree: dict[str, Any], letter: Letter) -> dict[str, str]:
    """The message as each kind of subscriber gets it; `default` is for those that are not named."""
    data = json.dumps(tree)
    words = f"{letter.title}\n\n{letter.text}"
    return {"default": words, "sqs": data, "lambda": data, "http": data, "https": data, "firehose": data}


def _subject(title: str) -> str:
    """ASCII without control characters, which is all that SNS takes."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in title)
    return f"[stoker] {plain}"[:_MOST_SUBJECT]
