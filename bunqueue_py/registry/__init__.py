"""Who works here, and what the background tasks have come to. Leaf nouns, cold."""
