"""Faults of what surrounds a cluster: networks between namespaces, memory limits, disks, object stores."""
