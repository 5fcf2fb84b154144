"""Parts of the fuzzing program: changes, targets, coverage."""
