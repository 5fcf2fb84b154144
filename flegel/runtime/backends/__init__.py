"""What runs an algorithm over a shard: one folder per technology."""
