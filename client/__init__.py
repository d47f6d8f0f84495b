"""The client SDK: put, get, match a prefix, look at stored bytes without a copy."""
