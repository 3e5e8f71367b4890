"""`qcn verify-parity`: every backend of a bundle against the float64 reference. Works without torch.

samples         the images, with the reference's answers to them
compare         answers against the reference's; inside: layers and iterations; arithmetic: routing's own statistics
preprocessing   what no backend sees
verify          all of it, for every backend: a verdict each
results         the verdicts in tables and lines, as a record, against an earlier one
"""
