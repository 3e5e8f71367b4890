"""libqcn from Python: where it is, its C interface, and its programs."""
