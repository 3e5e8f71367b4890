"""How large a routing problem may be, in Python and in libqcn (deploy/kernels/em_routing.h). No torch here."""

MAX_ITERATIONS = 5
MAX_PARENTS = 64  # of a fused kernel; the reference takes any number
