"""What a manager knows beside its jobs."""
