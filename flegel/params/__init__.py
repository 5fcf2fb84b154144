"""Where θ and the statistics of a job are kept, behind one small protocol. No clock, no socket, no thread."""
