"""Where the state survives: in memory only, for now."""
