"""A small client of etcd's API v3, made for coordination: nothing is lost, nobody waits for ever.

It exists because no library at hand keeps a watch and a lease alive when the member that it uses
freezes, and because the usual ones register etcd's own message names, of which a process can have
one set only (docs/adr/0002). One file is one noun: `endpoints` (channels, rotation), `password`,
`keys`, `leases`, `watch`; `client` puts them together; `store` is the interface that the fake in
`coordination/fake.py` has too; `address` and `gateway` need no gRPC.
"""
