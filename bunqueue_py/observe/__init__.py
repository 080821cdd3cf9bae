"""What is reported about a manager that runs: its health, and the checks that watch it."""
