"""How large a routing problem and what is kept of it may be, in Python and in libqcn (deploy/kernels/em_routing.h).

No torch here.
"""

MAX_ITERATIONS = 5
MAX_PARENTS = 64  # of a fused kernel; the reference takes any number
STATISTICS = 7  # of a parent and an iteration, kept for the gradients: mass, mean and variance
