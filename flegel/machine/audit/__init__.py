"""Whether the statistics are what the points say: checksums of reports, points counted again, the check at the end."""
