"""Files: durable writes, locks, SQLite, atomic folder replacement, and pickles read without running them."""
