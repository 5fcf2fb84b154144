"""Readers: one file per format."""
