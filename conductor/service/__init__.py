"""The conductor as a service: which instance prefills a request, which decodes it, whom to refuse.

`Scheduler` and what it holds are pure: time and the state of the world come in, decisions come out.
Around it stand HTTP, the store's events and a proxy.  docs/conductor.md is the manual.
"""
