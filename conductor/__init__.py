"""KVCache-aware scheduling: cost models, policies, a prefix index and a simulator.

Everything here is pure: no sockets, no clocks.  docs/scheduling.md explains model and policies.
"""
