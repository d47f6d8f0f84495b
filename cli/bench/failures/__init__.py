"""What faults cost those who use the store: one module a kind of fault, each with `run`."""
