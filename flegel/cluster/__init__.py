"""Several hosts: a master that queues jobs, slaves that run them, and what they say to each other."""
