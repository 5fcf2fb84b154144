"""Coordinator and worker as state machines: events in, commands out. No clock, no socket, no thread."""
