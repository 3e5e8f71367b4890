"""Routing in half precision on CUDA, for a fp16 Route: votes, distances and sums on tensor cores. Forward only.

A program has a tile of K children × N windows × 16 parents, laid out as a product of matrices leaves its result: a
thread has four parents of two windows. A warp has 16 windows; the warps are shared out between windows and children.
Children go by fours, since a product is over 16 numbers: x y z 0 of each. For a child c of the four, the poses of the
other three are 0.

    d = R u - m                      a product over x, y, z; -m goes in as its third argument, and d is rounded once
    x = d w                          w = sqrt(log2(e) / 2) / (32 sigma): in base 2, over 32
    l = prior - 1024 sum x^2         products of the squares with -1024 times the unit matrix: float32 sums
    S += r,  D += r x,  Q += r x^2   products with the unit matrix: float32 sums of float16 numbers

Powers, their sum over parents and the M-step are float32. 2^12 is put into r, which so has its digits down to 2^-26.
What float16 cannot do (d above 65504, a child far from every parent, a variance that cancels) becomes NaN or trips the
guard of the M-step; the window is marked, and triton_routing.py's `repair_kernel` routes it in float32.
"""

from typing import Any

import triton
import triton.language as tl

from qcn.kernels.triton_routing import (
    INTERPRETED,
    LOWEST,
    WARPS,
    constexpr,
    corner,
    density,
    gl,
    indices,
    jit,
    m_step,
    reciprocal,
    score,
    store_parents,
    without,
    zeros,
)

PARENTS = constexpr(16)  # at most; a tile has as many
WINDOWS = constexpr(16)  # of a warp
DEPTH = constexpr(16)  # of a product of matrices: x y z 0 of four children
DISTANCE_SCALE = constexpr(1024.0)
ROOT_SCALE = constexpr(1 / 32)
MASS_SCALE = constexpr(4096.0)

if INTERPRETED:

    def product(a: Any, b: Any, c: Any) -> Any:
        """Exact products, a float32 sum, rounded once to the type of c: as tensor cores have it."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), input_precision="ieee").to(c.dtype)

    def as_factor(x: Any, layout: Any) -> Any:
        return x
else:
    from triton.experimental.gluon.language.nvidia.ampere import mma_v2

    @jit
    def product(a, b, c):
        return mma_v2(a, b, c)

    @jit
    def as_factor(x, LAYOUT: constexpr):  # the same registers under another name
        return gl.convert_layout(x, LAYOUT)


@triton.constexpr_function
def half_layout(k: int) -> Any:
    """Which thread holds what of a [children, windows, parents] tile: `k` warps along the children."""
    if INTERPRETED:
        return None
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[k, WARPS // k, 1], instr_shape=[1, 16, 8])


@triton.constexpr_function
def factor_layout(which: int, layout: Any) -> Any:
    """The same of a product's first or second factor."""
    return None if layout is None else gl.DotOperandLayout(which, layout, 2)


@triton.constexpr_function
def half_windows(k: int) -> int:
    """The windows of a program."""
    return WINDOWS.value * WARPS // k


@triton.constexpr_function
def groups(channels: int) -> int:
    """How many fours of channels a place of the window has; the last may not be full."""
    return (channels + 3) // 4


@jit
def load_fours(inputs, first, windows, four, G: constexpr, N: constexpr, K: constexpr, L: constexpr):
    """Poses [K, N, 16] of four children, their activations, 4 × [K, N], and rotations, 3 × [K, 16, 16].

    `four` says which four children the first warps have.
    """
    pose, activation, rotation = inputs
    U: constexpr = factor_layout(0, L)
    R: constexpr = factor_layout(1, L)
    AREA: constexpr = G.height * G.width
    k = indices(K, without(U, 2, 1))[:, None, None]
    n = indices(N, without(U, 2, 0))[None, :, None]
    h = indices(DEPTH, without(U, 1, 0))[None, None, :]
    image, place = corner(gl.minimum(first + n, windows - 1), G)
    channel, at, _ = four_place(four + k, G)
    channel = gl.minimum(channel + h // 4, G.channels - 1)
    axis = gl.minimum(h % 4, 2)  # the fourth meets a 0 in the rotations
    u = gl.load((pose + (image * (3 * G.channels * AREA) + place)) + ((channel * 3 + axis) * AREA + at)).to(gl.float16)

    k = indices(K, without(L, 2, 1))[:, None]
    n = indices(N, without(L, 2, 0))[None, :]
    image, place = corner(gl.minimum(first + n, windows - 1), G)
    channel, at, end = four_place(four + k, G)
    a = (activation + (image * (G.channels * AREA) + place)) + (channel * AREA + at)
    left = gl.where(end, 0, G.channels - channel)
    active = (
        load_active(a, 0, left, G),
        load_active(a, 1, left, G),
        load_active(a, 2, left, G),
        load_active(a, 3, left, G),
    )

    k = indices(K, without(R, 2, 1))[:, None, None]
    h = indices(DEPTH, without(R, 2, 0))[None, :, None]
    j = indices(PARENTS, without(R, 1, 0))[None, None, :]
    STEP: constexpr = PARENTS * DEPTH
    row = gl.minimum(four + k, G.window_height * G.window_width * groups(G.channels) - 1)
    if G.shared:
        row = row % groups(G.channels)
    r = rotation + (row * (3 * STEP) + j * DEPTH + h)
    return u, active, (gl.load(r), gl.load(r + STEP), gl.load(r + 2 * STEP))


@jit
def four_place(four, G: constexpr):
    """The first channel of a four, where it is in a window's part of the map, and whether it is past the last."""
    place, group = four // groups(G.channels), four % groups(G.channels)
    PLACES: constexpr = G.window_height * G.window_width
    at = gl.minimum(place, PLACES - 1)
    return group * 4, at // G.window_width * G.width + at % G.window_width, place >= PLACES


@jit
def load_active(at, c: constexpr, left, G: constexpr):
    """Activations of child c of the four, times MASS_SCALE; 0 where `left`, of which the four are first, are fewer."""
    there = left > (0 if G.channels % 4 == 0 else c)  # one comparison for all four where no four is cut short
    return gl.load(at + c * (G.height * G.width), mask=there, other=0.0).to(gl.float32) * MASS_SCALE


@jit
def half_sweep(
    inputs, first, windows, around, G: constexpr, UNIFORM: constexpr, N: constexpr, K: constexpr, L: constexpr
):
    """One pass over the children: Σ r, Σ r x, Σ r x² with x = (v − m) w, each [N, P], times MASS_SCALE.

    inputs    pose, activation, and rotations in float16: [fours of children, 3, 16 parents, 16: x y z 0 of four
              children]
    around    -m and w, 3 × [N, P] in float16 each, and the prior [N, P], in base 2, the largest of a window 0
    UNIFORM   the first iteration: children shared out evenly
    """
    shift, weight, prior = around
    U: constexpr = factor_layout(0, L)
    R: constexpr = factor_layout(1, L)
    FOURS: constexpr = G.window_height * G.window_width * groups(G.channels)
    child = indices(DEPTH, without(U, 1, 0))[None, None, :] // 4
    same = indices(DEPTH, without(R, 2, 0))[None, :, None] == indices(PARENTS, without(R, 1, 0))[None, None, :]
    same = same & (indices(K, without(R, 2, 1))[:, None, None] >= 0)
    unit = gl.where(same, 1.0, 0.0).to(gl.float16)
    distance = gl.where(same, -DISTANCE_SCALE, 0.0).to(gl.float16)
    nothing = zeros([K, N, PARENTS], L)
    none = nothing.to(gl.float16)
    mx, my, mz = none + shift[0][None, :, :], none + shift[1][None, :, :], none + shift[2][None, :, :]
    wx, wy, wz = weight[0][None, :, :], weight[1][None, :, :], weight[2][None, :, :]
    prior = nothing + prior[None, :, :]
    s, dx, dy, dz, qx, qy, qz = nothing, nothing, nothing, nothing, nothing, nothing, nothing
    total = zeros([K, N], without(L, 2))
    u, a, rotors = load_fours(inputs, first, windows, 0, G, N, K, L)
    for four in range(0, FOURS, K):
        poses, active = u, a
        rx, ry, rz = rotors
        # The next children are under way while these are weighed.
        u, a, rotors = load_fours(inputs, first, windows, four + K, G, N, K, L)
        for c in gl.static_range(4):
            one = gl.where(child == c, poses, 0.0)
            x, y, z = product(one, rx, mx) * wx, product(one, ry, my) * wy, product(one, rz, mz) * wz
            if UNIFORM:
                even = active[c].to(gl.float16)
                total += even.to(gl.float32)
                r = even[:, :, None]
            else:
                logit = product(as_factor(x * x, U), distance, prior)
                logit = product(as_factor(y * y, U), distance, logit)
                logit = product(as_factor(z * z, U), distance, logit)
                p = gl.exp2(logit)
                norm = gl.sum(p, 2)
                r = p * gl.where(norm < LOWEST, float("nan"), active[c] * reciprocal(norm))[:, :, None]
                r = r.to(gl.float16)
                s = product(as_factor(r, U), unit, s)
            ax, ay, az = r * x, r * y, r * z
            dx = product(as_factor(ax, U), unit, dx)
            dy = product(as_factor(ay, U), unit, dy)
            dz = product(as_factor(az, U), unit, dz)
            qx = product(as_factor(ax * x, U), unit, qx)
            qy = product(as_factor(ay * y, U), unit, qy)
            qz = product(as_factor(az * z, U), unit, qz)
    if UNIFORM:
        s = s + total[:, :, None]
    return (
        gl.sum(s, 0),
        (gl.sum(dx, 0), gl.sum(dy, 0), gl.sum(dz, 0)),
        (gl.sum(qx, 0), gl.sum(qy, 0), gl.sum(qz, 0)),
    )


@jit
def unscale(first, second, weight):
    """Σ r d and Σ r d² along one axis, from Σ r x and Σ r x²."""
    inverse = 1.0 / weight.to(gl.float32)
    first = first * (inverse * (1.0 / MASS_SCALE))
    return first, second * (inverse * inverse * (1.0 / MASS_SCALE))


@jit
def root(weight):
    """What a difference is multiplied by, from what its square is."""
    return (gl.sqrt(weight) * ROOT_SCALE).to(gl.float16)


@jit
def half_kernel(
    pose,
    activation,
    rotation,
    beta_u,
    beta_a,
    out_pose,
    out_activation,
    cancelled,
    windows,
    G: constexpr,
    K: constexpr,
):
    """All iterations for a tile of windows. Marks those it cannot do well."""
    N: constexpr = half_windows(K)
    L: constexpr = half_layout(K)
    J: constexpr = G.parents
    ITERATIONS: constexpr = G.iterations
    inputs, first = (pose, activation, rotation), gl.program_id(0) * N
    n = first + indices(N, without(L, 0, 1))[:, None]
    j = indices(PARENTS, without(L, 0, 0))[None, :]
    live = (j < J) & (n >= 0)
    bu = gl.load(beta_u + j, mask=j < J, other=0.0)
    ba = gl.load(beta_a + j, mask=j < J, other=0.0)
    zero = zeros([N, PARENTS], without(L, 0))
    none, even = zero.to(gl.float16), (zero + ROOT_SCALE).to(gl.float16)
    shift, weight, prior = (none, none, none), (even, even, even), zero
    marks = gl.max(zero, 1).to(gl.int32)
    for t in gl.static_range(ITERATIONS):
        s, d, q = half_sweep(inputs, first, windows, (shift, weight, prior), G, t == 0, N, K, L)
        dx, qx = unscale(d[0], q[0], weight[0])
        dy, qy = unscale(d[1], q[1], weight[1])
        dz, qz = unscale(d[2], q[2], weight[2])
        around = (-shift[0].to(gl.float32), -shift[1].to(gl.float32), -shift[2].to(gl.float32))
        sums = (s * (1.0 / MASS_SCALE), (dx, dy, dz), (qx, qy, qz))
        mass, mean, variance, bad = m_step(sums, around, 1.0 / J if t == 0 else 1.0)
        marks = marks | gl.max(bad.to(gl.int32), 1)
        z, log_spread, _ = score(mass, variance, bu, ba, live, G)
        if t < ITERATIONS - 1:
            square, prior = density(z, log_spread, variance, live)
            weight = (root(square[0]), root(square[1]), root(square[2]))
            shift = ((-mean[0]).to(gl.float16), (-mean[1]).to(gl.float16), (-mean[2]).to(gl.float16))
    store_parents((out_pose, out_activation), mean, z, n, j, (n < windows) & (j < J), G)
    gl.store(cancelled + n, marks[:, None], mask=n < windows)
