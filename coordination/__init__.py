"""Who leads and who is a member, behind one interface for each coordination service."""
