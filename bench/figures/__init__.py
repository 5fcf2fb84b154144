"""One program for each figure or table of the papers; each writes a record for `bench.run_suite report`."""
