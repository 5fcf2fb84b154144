"""Processes of a launch: the master here, slaves wherever another system puts them, and how they get their keys."""
