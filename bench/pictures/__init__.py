"""Programs that draw the pictures of the README and of the documentation from real runs."""
