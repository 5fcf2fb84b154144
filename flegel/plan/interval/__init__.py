"""How long the next interval between two barriers should be. Pure."""
