"""Workers that rest because the job is faster without them: who, when, and when they are called back. Pure."""
