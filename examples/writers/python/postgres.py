"""Places an order on PostgreSQL: python postgres.py URL ORDER [--rollback]"""

import sys

import psycopg
from psycopg.types.json import Json


# docs: begin
def place_order(connection, order_id, total_cents):
    """Inserts the order and tells of it, in the caller's transaction. None: it was told already."""
    connection.execute("INSERT INTO orders (id, total_cents) VALUES (%s, %s)", (order_id, total_cents))
    return tell(connection, order_id, total_cents)


def tell(connection, order_id, total_cents):
    row = connection.execute(
        """
        SELECT outbox_enqueue('Order', %(order_id)s, %(payload)s,
            event_type => 'OrderCreated', idempotency_key => %(key)s)
        """,
        {
            "order_id": order_id,
            "payload": Json({"total_cents": total_cents}),
            "key": f"order:{order_id}:created",
        },
    ).fetchone()
    return row[0]
# docs: end


class RolledBack(Exception):
    pass


def main(url, order_id, rollback):
    with psycopg.connect(url) as connection:
        try:
            with connection.transaction():
                event_id = place_order(connection, order_id, 4200)
                print("enqueued", event_id)
                print("again", tell(connection, order_id, 4200))
                if rollback:
                    raise RolledBack
        except RolledBack:
            print("rolled back")


main(sys.argv[1], sys.argv[2], "--rollback" in sys.argv[3:])
