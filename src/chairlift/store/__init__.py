"""What outlives a request: responses and their items, in SQLite."""
