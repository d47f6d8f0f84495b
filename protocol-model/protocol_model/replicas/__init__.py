"""Objects of several extents and replicas: copies, notes, pins, views, tombstones, outages."""
