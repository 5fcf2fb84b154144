"""Rows that are not in memory yet: written in parts by whoever has them, then read as files."""
