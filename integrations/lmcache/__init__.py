"""LMCache: chunks of KV cache in the store, beside an engine and behind LMCache's own server."""
