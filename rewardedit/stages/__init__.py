"""Results that are computed once, in shards, by all processes, and keyed by their settings."""
