"""Whether a user's class does what the engine expects, and how fast it is."""
