"""KVCache-aware scheduling: cost models, policies, a prefix index and a simulator.

Everything here is pure, but for the shell of `service`: no sockets, no clocks.  docs/scheduling.md
explains model and policies, docs/conductor.md the service.
"""
