"""The master: which objects exist, where their replicas are, and what is evicted."""
