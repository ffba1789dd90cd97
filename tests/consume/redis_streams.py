"""Prints every entry of a stream: redis_streams.py PORT STREAM."""

import base64
import json
import sys

import redis

port, stream = sys.argv[1:]
client = redis.Redis(port=int(port), decode_responses=False)
last = "-"
while True:
    entries = client.xrange(stream, min=last, count=5000)
    for entry, fields in entries:
        payload = fields.pop(b"payload", None)
        print(
            json.dumps(
                {
                    "position": f"{stream}@{entry.decode()}",
                    "key": fields.get(b"outbox-aggregate-id", b"").decode() or None,
                    "headers": {name.decode(): value.decode() for name, value in fields.items()},
                    "body": None if payload is None else base64.b64encode(payload).decode(),
                }
            )
        )
    if not entries:
        break
    last = "(" + entries[-1][0].decode()
