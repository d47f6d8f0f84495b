"""What masters, store servers and clients say to each other: binary frames and protobuf."""
