"""The dashboard: one page for live jobs, clusters and saved runs (`flegel[dashboard]`). See docs/dashboard.md."""
