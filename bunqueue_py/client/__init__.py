"""What users hold: queues, jobs, workers."""
