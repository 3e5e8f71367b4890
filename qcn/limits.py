"""The constants of routing: its floors, and how large a problem may be. No torch here.

libqcn has the same: deploy/kernels/em_routing.h and em_routing_cpu.h.
"""

VARIANCE_FLOOR = 1e-4  # ε on σ²: poses are scaled to an RMS of 1, so this is a spread of one percent
MASS_FLOOR = 1e-6  # under S: a parent that nobody votes for stays finite
MAX_ITERATIONS = 5
MAX_THREADS = 1024  # of libqcn
MAX_PARENTS = 64  # of a fused kernel; the reference takes any number
STATISTICS = 7  # per parent and iteration, kept for the gradients: mass, mean and variance
