"""What a manager knows beside its jobs: workers, tasks, schedulers, webhooks. Nouns, cold."""
