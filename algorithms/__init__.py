"""Built-in algorithms, installed as `flegel.algorithms`. Each is found by name and imported when asked for."""
