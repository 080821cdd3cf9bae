"""Leaf nouns: they lock themselves and call nothing."""
