"""What a shard owns, as guarded nouns: the caller holds the shard's lock."""
