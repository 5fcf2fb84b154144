"""Figures of jobs and clusters for Prometheus. See docs/metrics.md."""
