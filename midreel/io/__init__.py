"""Files: durable writes and locks, SQLite, folders that are replaced as a whole, pickles read without running them."""
