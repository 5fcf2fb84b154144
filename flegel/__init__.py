"""Flegel."""
