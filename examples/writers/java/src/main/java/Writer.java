import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.UUID;

/** Places an order on PostgreSQL; arguments: URL ORDER [--rollback]. */
public final class Writer {
    // docs: begin
    /** Inserts the order and tells of it, in the connection's transaction. null: it was told already. */
    static UUID placeOrder(Connection connection, String orderId, long totalCents) throws SQLException {
        var insert = "INSERT INTO orders (id, total_cents) VALUES (?, ?)";
        try (var statement = connection.prepareStatement(insert)) {
            statement.setString(1, orderId);
            statement.setLong(2, totalCents);
            statement.executeUpdate();
        }
        return tell(connection, orderId, totalCents);
    }

    static UUID tell(Connection connection, String orderId, long totalCents) throws SQLException {
        // The cast is needed: JDBC says of a string that it is text.
        var enqueue = """
            SELECT outbox_enqueue('Order', ?, CAST(? AS json),
                event_type => 'OrderCreated', idempotency_key => ?)""";
        try (var statement = connection.prepareStatement(enqueue)) {
            statement.setString(1, orderId);
            statement.setString(2, "{\"total_cents\": %d}".formatted(totalCents));
            statement.setString(3, "order:" + orderId + ":created");
            try (var row = statement.executeQuery()) {
                row.next();
                return row.getObject(1, UUID.class);
            }
        }
    }
    // docs: end

    public static void main(String[] arguments) throws SQLException {
        var rollback = arguments.length > 2 && arguments[2].equals("--rollback");
        try (var connection = DriverManager.getConnection(arguments[0])) {
            connection.setAutoCommit(false);
            System.out.println("enqueued " + placeOrder(connection, arguments[1], 4200));
            System.out.println("again " + tell(connection, arguments[1], 4200));
            if (rollback) {
                connection.rollback();
                System.out.println("rolled back");
            } else {
                connection.commit();
            }
        }
    }

    private Writer() {}
}
