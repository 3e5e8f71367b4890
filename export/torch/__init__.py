"""Programs in torch: an interpreter of their operations, and the files that are traced from it (TorchScript, pt2)."""
