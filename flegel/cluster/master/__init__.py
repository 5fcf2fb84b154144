"""The master: queue, placement, journal, and its daemon."""
