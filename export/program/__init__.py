"""What a network is on a device: a flat list of operations. `lower` makes it from a trained network."""
