"""The store server: keeps objects in this node's memory and serves them to everybody."""
