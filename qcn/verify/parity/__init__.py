"""`qcn verify-parity`: every backend of a bundle against the float64 reference. Works without torch.

samples         the images, with the reference's answers to them
calls           in which batches, how often and in which order a backend is asked for them
soak            many more calls, for a given time
precision       which precision's tolerance counts
compare         answers against the reference's; inside: layers and iterations; arithmetic: routing's own statistics
preprocessing   what no backend sees; run: the training run, which the bundle is of
verdict         what is said of a backend, and what all verdicts come to
verify          all of it, for every backend: a verdict each
results         the verdicts in tables and lines, as a record, against an earlier one
"""
