"""Thirty tasks that a newcomer tries, beside scikit-learn: quality and time with default settings."""
