"""What a job returns, and what its model says about rows."""
