"""What people read in a terminal while a job runs: phases, progress, errors."""
