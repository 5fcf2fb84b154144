"""Several hosts: a master that queues jobs, slaves that run them, who may come in, what they say to each other."""
