"""Connectors for inference engines.  Nothing of an engine is imported before its connector is."""
