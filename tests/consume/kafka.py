"""Reads topics back, and makes them, with a client that is no kin of the relay's.

kafka.py read BROKERS TOPIC            every message, partition by partition, as lines of JSON
kafka.py create BROKERS TOPIC PARTITIONS REPLICAS [SETTING=VALUE ...]
"""

import base64
import json
import sys

sys.path.pop(0)  # or this file would be the module `kafka`

from kafka import KafkaConsumer, TopicPartition  # noqa: E402
from kafka.admin import KafkaAdminClient, NewTopic  # noqa: E402


def read(brokers, topic):
    consumer = KafkaConsumer(bootstrap_servers=brokers.split(","), enable_auto_commit=False)
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or [])]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    for partition in partitions:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while consumer.position(partition) < ends[partition]:
            for record in consumer.poll(timeout_ms=1000).get(partition, []):
                show(record)


def show(record):
    body = None if record.value is None else base64.b64encode(record.value).decode()
    line = {
        "position": f"{record.topic}/{record.partition}@{record.offset}",
        "key": None if record.key is None else record.key.decode(),
        "headers": {name: value.decode() for name, value in record.headers},
        "body": body,
    }
    print(json.dumps(line))


def create(brokers, topic, partitions, replicas, *settings):
    admin = KafkaAdminClient(bootstrap_servers=brokers.split(","))
    new = NewTopic(
        name=topic,
        num_partitions=int(partitions),
        replication_factor=int(replicas),
        topic_configs=dict(setting.split("=", 1) for setting in settings),
    )
    admin.create_topics([new])


command, *arguments = sys.argv[1:]
{"read": read, "create": create}[command](*arguments)
