"""The SQL stores: one logic, one row mapper, SQL in `.sql` files, and two dialects of it."""
