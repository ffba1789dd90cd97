"""Places an order on SQLite: python sqlite.py FILE ORDER [--rollback]"""

import hashlib
import json
import sqlite3
import sys
import uuid


# docs: begin
def idempotent_id(queue, key):
    """The id that a key stands for: a UUIDv8 of a hash, the same in every language."""
    digest = bytearray(hashlib.sha256(f"{queue}\0{key}".encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def place_order(connection, order_id, total_cents):
    """Inserts the order and tells of it, in the caller's transaction. None: it was told already."""
    connection.execute("INSERT INTO orders (id, total_cents) VALUES (?, ?)", (order_id, total_cents))
    return tell(connection, order_id, total_cents)


def tell(connection, order_id, total_cents):
    event_id = idempotent_id("default", f"order:{order_id}:created")
    inserted = connection.execute(
        """
        INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, event_type, payload)
        VALUES (?, 'Order', ?, 'OrderCreated', ?)
        ON CONFLICT (id) DO NOTHING
        """,
        (event_id, order_id, json.dumps({"total_cents": total_cents})),
    ).rowcount
    return event_id if inserted else None
# docs: end


class RolledBack(Exception):
    pass


def main(path, order_id, rollback):
    connection = sqlite3.connect(path, timeout=30)
    try:
        with connection:
            event_id = place_order(connection, order_id, 4200)
            print("enqueued", event_id)
            print("again", tell(connection, order_id, 4200))
            if rollback:
                raise RolledBack
    except RolledBack:
        print("rolled back")
    finally:
        connection.close()


main(sys.argv[1], sys.argv[2], "--rollback" in sys.argv[3:])
