"""Who works here, what the background tasks have come to, whom to tell. Leaf nouns, cold."""
