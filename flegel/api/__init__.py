"""What users call from Python: run, resume, clusters of this host."""
