"""The commands that users of the package start, carried out by processes of mooncake-store."""
