"""The `mooncake-store` command: one file a sub-command, imported when it runs."""
