"""The store server: owns the memory segments of one node and serves them to everybody."""
