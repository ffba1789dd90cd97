"""Prints every message of a stream: jetstream.py PORT STREAM."""

import asyncio
import base64
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

port, stream = sys.argv[1:]


def show(message):
    headers = dict(message.headers or {})
    message_id = headers.pop("Nats-Msg-Id", None)
    assert message_id == headers.get("outbox-id", message_id), message_id
    print(
        json.dumps(
            {
                "position": f"{message.metadata.stream}@{message.metadata.sequence.stream}",
                "key": headers.get("outbox-aggregate-id"),
                "headers": headers,
                "body": base64.b64encode(message.data).decode(),
            }
        )
    )


async def main():
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    jetstream = client.jetstream()
    left = (await jetstream.stream_info(stream)).state.messages
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
    subscription = await jetstream.pull_subscribe("", stream=stream, config=config)
    while left > 0:
        messages = await subscription.fetch(min(left, 500), timeout=20)
        for message in messages:
            show(message)
        left -= len(messages)
    await client.close()


asyncio.run(main())
