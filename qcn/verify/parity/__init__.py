"""`qcn verify-parity`: every backend of a bundle against the float64 reference. Works without torch.

samples         the images, with the reference's answers to them
calls           the batches in which a backend is asked, and their order
soak            many more calls, for a given time
precision       the precision that a file is judged by
compare         answers against the reference's; stages: layers and iterations; arithmetic: routing's statistics
preprocessing   pre-processing, which no backend sees; run: the training run that the bundle comes from
verdict         the verdict on a file in a backend, and the overall status
verify          one verdict per file and backend
results         verdicts as tables, lines and a record, and compared with an earlier record
"""
