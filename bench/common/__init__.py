"""What several benchmarks share. Nothing here is a program of its own, except the simulated workers' process."""
