"""Files that are written whole or not at all, and records as JSON."""
