"""Routing on CUDA, in Triton's Gluon dialect, without ever writing a vote to memory. Gradients: triton_backward.py.

A program works on a tile of N windows × K children × P parents. Gluon lets us say which thread holds what, and here
that is the difference between slow and fast: a thread holds four neighbouring parents of one or two windows, so rotors
come in 16-byte loads, and the softmax over 16 parents costs two shuffles. With many windows the lanes of a warp lie
along the windows and share their rotors (K = 1); with few, the children of a window are split over the thread block
(K > 1) and the partial sums of a sweep are added at its end. docs/kernels.md derives the sums and the gradients.

Under TRITON_INTERPRET=1 the same kernels run on a CPU, without layouts: so they are tested where there is no GPU.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from qcn import limits

INTERPRETED = triton.knobs.runtime.interpret
if INTERPRETED:
    gl, jit = tl, triton.jit
else:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    jit = gluon.jit

constexpr = tl.constexpr
LOG2E = constexpr(1.4426950408889634)
EPS_V = constexpr(limits.VARIANCE_FLOOR)
EPS_M = constexpr(limits.MASS_FLOOR)
# Σ r (v − μ)² comes from sums around a shift m. Where the mean is further from it than this many variances, too many
# digits cancel, and the sweep is done again around the mean itself.
CANCELLATION = constexpr(8.0)
# Nor does the softmax look for the largest logit: it takes the largest prior, so that no power overflows. A child so
# far from every parent that its powers come near float32's smallest, 2⁻¹²⁶, gives NaN, and its window is done again.
LOWEST = constexpr(2.0**-100)
STATISTICS = constexpr(limits.STATISTICS)  # mass, mean xyz, variance xyz
# Of a parent, what the backward by children needs of an iteration: mean xyz, A, B xyz, C xyz, weight xyz, prior.
COEFFICIENTS = constexpr(14)


@dataclass(frozen=True)
class Geometry:
    """The shape of a routing problem, known when a kernel is compiled; only the number of images is not."""

    channels: int
    height: int
    width: int
    window_height: int
    window_width: int
    stride: int
    rows: int
    columns: int
    children: int
    parents: int
    padded_parents: int  # the next power of two, since a tile's sides are such
    iterations: int
    unit: bool
    logit: bool  # z comes out in place of the activation
    shared: bool  # one rotation per (child type, parent) pair for all places of the window


# ---- where things lie ------------------------------------------------------------------------------------------------


WARPS = 4  # of a program


@triton.constexpr_function
def tile_windows(windows_per_thread: int, k: int, parents: int) -> int:
    """How many windows a program's threads have room for, beside k children and the parents."""
    return windows_per_thread * WARPS * 32 * min(4, parents) // (parents * k)


@dataclass(frozen=True)
class Tile:
    """The windows and children that a program has at a time; `layout` says which thread holds what of them."""

    windows: int
    children: int
    layout: Any


@triton.constexpr_function
def tile_of(windows_per_thread: int, k: int, parents: int) -> Tile:
    """A [windows, children, parents] tile. Children take lanes first, then warps."""
    windows = tile_windows(windows_per_thread, k, parents)
    if INTERPRETED:
        return Tile(windows, k, None)
    per_thread = min(4, parents)
    parent_lanes = parents // per_thread
    child_lanes = min(k, 32 // parent_lanes)
    child_warps = k // child_lanes
    layout = gl.BlockedLayout(
        [windows_per_thread, 1, per_thread],
        [32 // (child_lanes * parent_lanes), child_lanes, parent_lanes],
        [WARPS // child_warps, child_warps, 1],
        [2, 1, 0],
    )
    return Tile(windows, k, layout)


@triton.constexpr_function
def without(layout: Any, first: int, second: int | None = None) -> Any:
    """The layout of what is left of a tile when one axis, and then another of the rest, is taken away."""
    for axis in (first, second):
        layout = layout if layout is None or axis is None else gl.SliceLayout(axis, layout)
    return layout


if INTERPRETED:

    def indices(size: int, layout: Any) -> Any:
        return tl.arange(0, size)

    def zeros(shape: Any, layout: Any) -> Any:
        return tl.zeros(shape, tl.float32)

    def reciprocal(x: Any) -> Any:
        return 1.0 / x
else:

    @jit
    def indices(SIZE: constexpr, LAYOUT: constexpr):
        return gl.arange(0, SIZE, layout=LAYOUT)

    @jit
    def zeros(SHAPE: constexpr, LAYOUT: constexpr):
        return gl.zeros(SHAPE, gl.float32, layout=LAYOUT)

    # One instruction: its argument, a softmax's sum of powers, is far from the ends of the range.
    @jit
    def reciprocal(x):
        return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@jit
def corner(n, G: constexpr):
    """Window n's image, and the place of its upper left child in a channel of the map."""
    image = n // (G.rows * G.columns)
    row = n // G.columns % G.rows
    return image, (row * G.width + n % G.columns) * G.stride


@jit
def load_three(at, step, mask, other):
    return (
        gl.load(at, mask=mask, other=other),
        gl.load(at + step, mask=mask, other=other),
        gl.load(at + 2 * step, mask=mask, other=other),
    )


@jit
def load_children(pose, activation, image, corner, i, G: constexpr):
    """Poses and activations of children `i` of the windows at `corner`. Past the last: the last, without weight."""
    AREA: constexpr = G.height * G.width
    child = gl.minimum(i, G.children - 1)
    place, channel = child // G.channels, child % G.channels
    at = place // G.window_width * G.width + place % G.window_width
    # First what is the same for all children, so that it is added once.
    p = (pose + (image * (3 * G.channels * AREA) + corner)) + (channel * (3 * AREA) + at)
    x, y, z = gl.load(p).to(gl.float32), gl.load(p + AREA).to(gl.float32), gl.load(p + 2 * AREA).to(gl.float32)
    a = gl.load((activation + (image * (G.channels * AREA) + corner)) + (channel * AREA + at)).to(gl.float32)
    return x, y, z, gl.where(i < G.children, a, 0.0)


@jit
def load_rotation(rotation, i, j, G: constexpr):
    """The nine coefficients R_ij, row by row; `rotation` is [children, 9, parents]. Past the last: the last again."""
    J: constexpr = G.parents
    row = gl.minimum(i, G.children - 1)
    if G.shared:
        row = row % G.channels
    if G.padded_parents != J:
        j = gl.minimum(j, J - 1)
    at = rotation + row * (9 * J) + j
    return (
        gl.load(at),
        gl.load(at + J),
        gl.load(at + 2 * J),
        gl.load(at + 3 * J),
        gl.load(at + 4 * J),
        gl.load(at + 5 * J),
        gl.load(at + 6 * J),
        gl.load(at + 7 * J),
        gl.load(at + 8 * J),
    )


@jit
def votes_around(R, x, y, z, mx, my, mz):
    """R u − m, [N, K, P]: starting the sums at −m makes the shift free.

    The multiply-adds are spelt out: left to itself LLVM makes some of them twice over, added in two orders.
    """
    xx, xy, xz, yx, yy, yz, zx, zy, zz = R
    x, y, z = x[:, :, None], y[:, :, None], z[:, :, None]
    dx = gl.fma(xz[None, :, :], z, gl.fma(xy[None, :, :], y, xx[None, :, :] * x - mx))
    dy = gl.fma(yz[None, :, :], z, gl.fma(yy[None, :, :], y, yx[None, :, :] * x - my))
    dz = gl.fma(zz[None, :, :], z, gl.fma(zy[None, :, :], y, zx[None, :, :] * x - mz))
    return dx, dy, dz


# ---- forward ---------------------------------------------------------------------------------------------------------


@jit
def sweep(
    inputs, image, place, shift, mean, weight, prior, G: constexpr, TILE: constexpr, UNIFORM: constexpr, SAFE: constexpr
):
    """One pass over the children: Σ r, Σ r d, Σ r d² with d = v − shift, each [N, P].

    shift     3 × [N, P]
    mean      3 × [N, P], of the iteration before
    weight    3 × [N, P], log2(e) / 2σ²
    prior     [N, P], in base 2, the largest of a window 0
    UNIFORM   the first iteration: children shared out evenly
    SAFE      for any shift and any distance; else the shift is the mean, and a child too far off gives NaN
    """
    pose, activation, rotation = inputs
    N: constexpr = TILE.windows
    K: constexpr = TILE.children
    L: constexpr = TILE.layout
    P: constexpr = G.padded_parents
    lane = indices(K, without(L, 2, 0))[None, :]
    lane_of_rotor = indices(K, without(L, 0, 1))[:, None]
    j = indices(P, without(L, 0, 0))[None, :]
    image, place = image[:, None], place[:, None]
    mx, my, mz = shift[0][:, None, :], shift[1][:, None, :], shift[2][:, None, :]
    wx, wy, wz = weight[0][:, None, :], weight[1][:, None, :], weight[2][:, None, :]
    prior = prior[:, None, :]
    if SAFE:
        ex, ey, ez = mx - mean[0][:, None, :], my - mean[1][:, None, :], mz - mean[2][:, None, :]
    nothing = zeros([N, K, P], L)
    s, dx, dy, dz, qx, qy, qz = nothing, nothing, nothing, nothing, nothing, nothing, nothing
    total = zeros([N, K], without(L, 2))
    u = load_children(pose, activation, image, place, lane, G)
    R = load_rotation(rotation, lane_of_rotor, j, G)
    for first in range(0, G.children, 2 * K):
        for half in gl.static_range(2):  # by twos, so that the next children need not be copied over these
            x, y, z, a = u
            if UNIFORM and not SAFE:
                # Around 0 the root of the weight can go into the pose: Σ r d² is then a sum of squares.
                total += a
                a = gl.sqrt(a)
                x, y, z = a * x, a * y, a * z
            vx, vy, vz = votes_around(R, x, y, z, mx, my, mz)
            # The next children are under way while these are weighed.
            u = load_children(pose, activation, image, place, first + (half + 1) * K + lane, G)
            R = load_rotation(rotation, first + (half + 1) * K + lane_of_rotor, j, G)
            if UNIFORM and not SAFE:
                r = a[:, :, None]
                qx += vx * vx
                qy += vy * vy
                qz += vz * vz
            else:
                ax, ay, az = vx * vx, vy * vy, vz * vz
                if UNIFORM:
                    r = a[:, :, None]
                    total += a
                else:
                    if SAFE:
                        fx, fy, fz = vx + ex, vy + ey, vz + ez
                        logit = prior - fx * fx * wx - fy * fy * wy - fz * fz * wz
                        p = gl.exp2(logit - gl.max(logit, 2)[:, :, None])
                    else:
                        p = gl.exp2(prior - ax * wx - ay * wy - az * wz)
                    norm = gl.sum(p, 2)
                    r = p * gl.where(norm < LOWEST, float("nan"), a * reciprocal(norm))[:, :, None]
                    s += r
                qx += r * ax
                qy += r * ay
                qz += r * az
            dx += r * vx
            dy += r * vy
            dz += r * vz
    if UNIFORM:
        s = s + total[:, :, None]
    return (
        gl.sum(s, 1),
        (gl.sum(dx, 1), gl.sum(dy, 1), gl.sum(dz, 1)),
        (gl.sum(qx, 1), gl.sum(qy, 1), gl.sum(qz, 1)),
    )


@jit
def spread(s, inverse, d, q, m):
    """Along one axis: the mean, the variance around it, and whether too many digits of it cancelled."""
    mean = (d + s * m) * inverse
    e = mean - m
    variance = gl.maximum(q - 2 * e * d + e * e * s, 0.0) * inverse + EPS_V
    good = e * e * s * inverse <= CANCELLATION * variance  # and no NaN
    return mean, variance, ~good


@jit
def m_step(sums, shift, SCALE: constexpr):
    """Mass, mean and variance [N, P] from a sweep's sums around `shift`, and where these cannot be trusted."""
    s, d, q = sums
    s = s * SCALE
    inverse = 1.0 / (s + EPS_M)
    x, vx, bad_x = spread(s, inverse, d[0] * SCALE, q[0] * SCALE, shift[0])
    y, vy, bad_y = spread(s, inverse, d[1] * SCALE, q[1] * SCALE, shift[1])
    z, vz, bad_z = spread(s, inverse, d[2] * SCALE, q[2] * SCALE, shift[2])
    return s, (x, y, z), (vx, vy, vz), bad_x | bad_y | bad_z


@jit
def fit(inputs, image, place, mean, weight, prior, G: constexpr, TILE: constexpr, UNIFORM: constexpr, TWICE: constexpr):
    """The parents' mass, mean and variance from those of the iteration before: E-step and M-step in one sweep.

    TWICE sweeps again around the new mean, where nothing can cancel. Without it, says which windows need that, [N].
    """
    SCALE: constexpr = 1.0 / G.parents if UNIFORM else 1.0
    sums = sweep(inputs, image, place, mean, mean, weight, prior, G, TILE, UNIFORM, TWICE)
    mass, new, variance, bad = m_step(sums, mean, SCALE)
    if TWICE:
        sums = sweep(inputs, image, place, new, mean, weight, prior, G, TILE, UNIFORM, True)
        mass, new, variance, bad = m_step(sums, new, SCALE)
    return mass, new, variance, gl.max(bad.to(gl.int32), 1)


@jit
def score(mass, variance, beta_u, beta_a, live, G: constexpr):
    """z and ½ Σ ln σ² of each parent, [N, P]; in unit mode also the norm that z was divided by."""
    log_spread = 0.5 * (gl.log(variance[0]) + gl.log(variance[1]) + gl.log(variance[2]))
    z = beta_a - (3 * beta_u + log_spread) * mass * (2 * G.parents / G.children)
    norm = 1.0
    if G.unit:
        z = gl.where(live, z, 0.0)
        norm = gl.maximum(gl.sqrt(gl.sum(z * z, 1)), 1e-12)[:, None]
        z = z / norm
    return z, log_spread, norm


@jit
def log_sigmoid(z):
    return gl.minimum(z, 0.0) - gl.log(1.0 + gl.exp(-gl.abs(z)))


@jit
def sigmoid(z):
    return 1.0 / (1.0 + gl.exp(-z))


@jit
def density(z, log_spread, variance, live):
    """What the E-step needs of a parent: the weights of the squared distances, and the prior over the largest one."""
    half = 0.5 * LOG2E
    prior = gl.where(live, (log_sigmoid(z) - log_spread) * LOG2E, float("-inf"))
    prior = prior - gl.max(prior, 1)[:, None]
    return (half / variance[0], half / variance[1], half / variance[2]), prior


@jit
def store_parents(outputs, mean, z, n, j, stored, G: constexpr):
    AREA: constexpr = G.rows * G.columns
    out_pose, out_activation = outputs
    channel, spot = n // AREA * G.parents + j, n % AREA
    gl.store(out_activation + channel * AREA + spot, z if G.logit else sigmoid(z), mask=stored)
    for h in gl.static_range(3):
        gl.store(out_pose + (channel * 3 + h) * AREA + spot, mean[h], mask=stored)


@jit
def route_tile(
    inputs, betas, outputs, kept, windows, G: constexpr, TILE: constexpr, SAVE: constexpr, REPAIR: constexpr
):
    """All iterations for a tile of windows. Marks those it cannot do well; REPAIR does only these, sweeping twice."""
    N: constexpr = TILE.windows
    L: constexpr = TILE.layout
    P: constexpr = G.padded_parents
    J: constexpr = G.parents
    ITERATIONS: constexpr = G.iterations
    statistics, cancelled = kept
    first = gl.program_id(0) * N
    # Windows past the end repeat the last one's work and store nothing.
    image, place = corner(gl.minimum(first + indices(N, without(L, 2, 1)), windows - 1), G)
    n = first + indices(N, without(L, 1, 1))[:, None]
    j = indices(P, without(L, 1, 0))[None, :]
    live = (j < J) & (n >= 0)
    stored = (n < windows) & (j < J)
    if REPAIR:
        stored = stored & (gl.load(cancelled + n, mask=n < windows, other=0) != 0)
    bu = gl.load(betas[0] + j, mask=j < J, other=0.0)
    ba = gl.load(betas[1] + j, mask=j < J, other=0.0)
    zero = zeros([N, P], without(L, 1))
    mean, weight, prior = (zero, zero, zero), (zero, zero, zero), zero
    marks = gl.max(zero, 1).to(gl.int32)
    for t in gl.static_range(ITERATIONS):
        mass, mean, variance, new_marks = fit(inputs, image, place, mean, weight, prior, G, TILE, t == 0, REPAIR)
        marks = marks | new_marks
        z, log_spread, _ = score(mass, variance, bu, ba, live, G)
        if SAVE:
            at = statistics + (t * STATISTICS * windows + n) * J + j
            step = windows * J
            gl.store(at, mass, mask=stored)
            for h in gl.static_range(3):
                gl.store(at + (1 + h) * step, mean[h], mask=stored)
                gl.store(at + (4 + h) * step, variance[h], mask=stored)
        if t < ITERATIONS - 1:
            weight, prior = density(z, log_spread, variance, live)
    store_parents(outputs, mean, z, n, j, stored, G)
    if not REPAIR:
        gl.store(cancelled + n, marks[:, None], mask=n < windows)


@jit
def forward_kernel(
    pose,
    activation,
    rotation,
    beta_u,
    beta_a,
    out_pose,
    out_activation,
    statistics,
    cancelled,
    windows,
    G: constexpr,
    SAVE: constexpr,
    K: constexpr,
    WINDOWS_PER_THREAD: constexpr,
):
    inputs, betas, outputs = (pose, activation, rotation), (beta_u, beta_a), (out_pose, out_activation)
    TILE: constexpr = tile_of(WINDOWS_PER_THREAD, K, G.padded_parents)
    route_tile(inputs, betas, outputs, (statistics, cancelled), windows, G, TILE, SAVE, False)


@jit
def repair_kernel(
    pose,
    activation,
    rotation,
    beta_u,
    beta_a,
    out_pose,
    out_activation,
    statistics,
    cancelled,
    windows,
    G: constexpr,
    SAVE: constexpr,
    K: constexpr,
):
    """Route the windows again that `forward_kernel` marked. There are hardly ever any: most programs end at once."""
    inputs, betas, outputs = (pose, activation, rotation), (beta_u, beta_a), (out_pose, out_activation)
    TILE: constexpr = tile_of(1, K, G.padded_parents)
    n = gl.program_id(0) * TILE.windows + indices(TILE.windows, without(TILE.layout, 2, 1))
    if gl.max(gl.load(cancelled + n, mask=n < windows, other=0), 0) > 0:
        route_tile(inputs, betas, outputs, (statistics, cancelled), windows, G, TILE, SAVE, True)
