"""Commands that show jobs while they run: the dashboard in a browser, `flegel top` in a terminal."""
