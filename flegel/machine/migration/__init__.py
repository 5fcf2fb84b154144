"""The two ends of a migration, and points as they travel."""
