"""The coordinator of a job as a state machine, by its parts."""
