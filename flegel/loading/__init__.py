"""Files that somebody else may have written: read within bounds and checked. Their code runs past `code_gate` only."""
