"""Bytes between processes: codec, sockets, keys, shared memory."""
