"""What tests need of RabbitMQ, with pika.

rabbitmq.py URL consume QUEUE…                prints every message as a line of JSON, and takes it out of its queue
rabbitmq.py URL queue NAME [ARGUMENTS]        declares a durable queue, a quorum queue unless arguments in JSON are given
rabbitmq.py URL exchange NAME QUEUE KEY       declares a durable topic exchange and a quorum queue bound to it
"""

import base64
import json
import sys
from urllib.parse import quote

import pika

QUORUM = '{"x-queue-type": "quorum"}'


def address(exchange, routing_key):
    """What the relay's receipt should say."""
    if not exchange:
        return f"/queues/{quote(routing_key, safe='')}"
    return f"/exchanges/{quote(exchange, safe='')}/{quote(routing_key, safe='')}"


def line(method, properties, body):
    headers = dict(properties.headers or {})
    tombstone = headers.pop("outbox-tombstone", None) == "true"
    assert not (tombstone and body), "a tombstone with a body"
    if properties.content_type is not None:
        headers["content-type"] = properties.content_type
    # Properties that are no headers have nowhere else to go.
    headers["amqp-message-id"] = properties.message_id
    headers["amqp-delivery-mode"] = str(properties.delivery_mode)
    headers["amqp-type"] = properties.type or ""
    return json.dumps(
        {
            "position": address(method.exchange, method.routing_key),
            "key": headers.get("outbox-aggregate-id"),
            "headers": headers,
            "body": None if tombstone else base64.b64encode(body).decode(),
        }
    )


def consume(channel, *queues):
    channel.basic_qos(prefetch_count=1000)
    for queue in queues:
        left = channel.queue_declare(queue, passive=True).method.message_count
        if left == 0:
            continue
        for method, properties, body in channel.consume(queue, inactivity_timeout=30):
            assert method is not None, f"{left} messages of {queue} do not come"
            print(line(method, properties, body))
            channel.basic_ack(method.delivery_tag)
            left -= 1
            if left == 0:
                break
        channel.cancel()


def queue(channel, name, arguments=QUORUM):
    channel.queue_declare(name, durable=True, arguments=json.loads(arguments))


def exchange(channel, name, queue_name, key):
    channel.exchange_declare(name, exchange_type="topic", durable=True)
    queue(channel, queue_name)
    channel.queue_bind(queue_name, name, key)


def main():
    url, command, *arguments = sys.argv[1:]
    commands = {"consume": consume, "queue": queue, "exchange": exchange}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        commands[command](connection.channel(), *arguments)


main()
