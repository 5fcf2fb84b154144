"""All I/O: sockets, clock, disk, processes, compiled code. Decisions are made elsewhere."""
