"""Watching a manager from outside: figures, exporters, webhooks, traces."""
