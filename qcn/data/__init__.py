"""Data sets: `registry` has all by name, `spec` says what one is, and each other module reads one or changes images."""
