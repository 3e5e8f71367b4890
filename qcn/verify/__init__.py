"""Does a deployment answer as the trained network did, and how fast is it? None of it needs torch, but where said.

runners/    one file per backend, one contract, one registry
parity/     `qcn verify-parity`: every backend against the float64 reference
speed/      `qcn benchmark`: latency, cold start, memory, energy
ship/       `qcn ship-check`: both, and accuracy, against limits
report/     what they found, as a page, for CI and for programs
machine     what this machine is and has
"""
