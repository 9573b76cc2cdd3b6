"""Array libraries: one file each, found by name."""
