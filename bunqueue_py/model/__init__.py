"""What a job is, apart from where it is kept: its record, options, back-off, failures, events."""
