"""The slave: the daemon of a host, its processes, and a job's coordinator among them."""
