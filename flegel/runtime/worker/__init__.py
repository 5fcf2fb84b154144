"""The worker process: its threads, its rows, its points on the move."""
