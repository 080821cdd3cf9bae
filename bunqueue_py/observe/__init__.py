"""Watching a manager: its health and the checks of it, figures, exporters, webhooks, traces."""
