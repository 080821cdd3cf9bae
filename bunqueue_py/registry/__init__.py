"""Leaf nouns that are cold: what is registered with a manager. They lock themselves."""
