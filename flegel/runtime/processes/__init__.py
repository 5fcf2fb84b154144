"""Worker processes: started, forked, watched and ended; what this host is."""
