"""Generated sets and stand-ins."""
