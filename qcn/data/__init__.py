"""The data sets of the product, by name."""
