"""Tuned numbers of the engine: one frozen record for each subject, with names, units and reasons."""
