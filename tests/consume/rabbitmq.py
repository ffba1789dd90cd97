"""Prints every message of the given queues as a line of JSON, and takes it out of its queue.

rabbitmq.py URL QUEUE…
"""

import base64
import json
import sys
from urllib.parse import quote

import pika


def address(exchange, routing_key):
    """What the relay's receipt should say."""
    if not exchange:
        return f"/queues/{quote(routing_key, safe='')}"
    return f"/exchanges/{quote(exchange, safe='')}/{quote(routing_key, safe='')}"


def line(method, properties, body):
    headers = dict(properties.headers or {})
    tombstone = headers.pop("outbox-tombstone", None) == "true"
    if properties.content_type is not None:
        headers["content-type"] = properties.content_type
    # The properties that are not headers have nowhere else to go.
    headers["amqp-message-id"] = properties.message_id
    headers["amqp-delivery-mode"] = str(properties.delivery_mode)
    assert not (tombstone and body), "a tombstone with a body"
    return json.dumps(
        {
            "position": address(method.exchange, method.routing_key),
            "key": headers.get("outbox-aggregate-id"),
            "headers": headers,
            "body": None if tombstone else base64.b64encode(body).decode(),
        }
    )


def main():
    url, *queues = sys.argv[1:]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        for queue in queues:
            left = channel.queue_declare(queue, passive=True).method.message_count
            if left == 0:
                continue
            for method, properties, body in channel.consume(queue, inactivity_timeout=30):
                assert method is not None, f"{left} messages of {queue} do not come"
                print(line(method, properties, body))
                left -= 1
                if left == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                    break
            channel.cancel()


main()
