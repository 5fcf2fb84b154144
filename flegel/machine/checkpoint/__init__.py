"""The state of a job between two commits as plain data, and a coordinator that continues from it. Pure: no file."""
