"""Models of the object protocol (docs/protocol.md), and the search through their states."""
