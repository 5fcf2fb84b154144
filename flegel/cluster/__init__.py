"""Several hosts: keys, the gate that every message from the network goes through, and the daemons behind it."""
