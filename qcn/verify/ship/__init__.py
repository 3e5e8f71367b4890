"""`qcn ship-check`: one file of a bundle in one backend, held against limits. Works without torch.

limits    what is asked: 0.94, 5ms@p99, 200MiB, 30mJ, read strictly
judge     what was found against a limit: a row with a verdict; nothing is measured here
check     measures by evaluate, verify-parity and benchmark, and has it judged
results   the rows as a record (`Ship`), as a table, and what it all comes to
"""
