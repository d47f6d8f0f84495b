"""The transfer engine: moves byte ranges between registered memories; knows no keys."""
