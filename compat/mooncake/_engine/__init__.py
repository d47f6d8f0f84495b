"""What `mooncake.engine` offers beside transfers: messages, and memory of several processes."""
