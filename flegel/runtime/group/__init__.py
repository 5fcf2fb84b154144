"""I/O of a group: the bucket, keys, and the thread that synchronizes beside training."""
