"""Faults against real processes: what was done is recorded, and checked afterwards."""
