"""Data sets by name and by path, installed as `flegel.datasets`."""
