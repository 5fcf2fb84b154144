"""Whole jobs under faults on virtual time, and the laws that must hold."""
