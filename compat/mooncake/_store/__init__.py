"""What `mooncake.store` is made of; import that."""
