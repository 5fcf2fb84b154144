"""Small parts of a job, one file each: what a job can do without (`flegel/runtime/job/part.py`)."""
