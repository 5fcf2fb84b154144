"""The sockets of parameter servers, and of workers to them. Decides nothing."""
