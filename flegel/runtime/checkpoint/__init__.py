"""Checkpoints on disk or in an object store: written in the background, read with every doubt."""
