"""Where the state survives in one SQLite file."""
