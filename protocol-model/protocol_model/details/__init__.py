"""Three small models: a server's inventory file, the attempts of one transfer, notes."""
