"""Objects of one extent: every frame, every page, and everything that can happen to either."""
