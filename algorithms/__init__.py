"""Built-in algorithms, installed as `flegel.algorithms`. Each is found by name, imported when asked for."""
