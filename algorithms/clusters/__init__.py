"""Clusters that k-means does not give: of given sizes, of categories."""
