"""`python -m qcn`, and so `torchrun … -m qcn`."""

from qcn.entry import main

main()
