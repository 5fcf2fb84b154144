"""Files that somebody else may have written: read within bounds, checked, never run."""
