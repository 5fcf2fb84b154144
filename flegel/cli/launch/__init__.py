"""`flegel launch`: clusters on machines of another system."""
