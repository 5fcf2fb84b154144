"""Rows and how they are read: sources, streams, ranges, shards, the columnar cache. Knows no file format but `.npy`."""
