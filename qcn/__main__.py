"""`python -m qcn`, and so `torchrun … -m qcn`."""

from qcn.cli import main

main()
