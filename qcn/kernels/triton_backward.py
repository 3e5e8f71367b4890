"""The gradients of routing on CUDA: by windows, then by children; votes and responsibilities are computed again.

docs/kernels.md derives them. In short: from an iteration's gradient of mass, mean and variance follow seven numbers a
parent, A, B (3) and C (3), so that around the iteration's mean a vote d has

    ∂/∂r = A + Σ_h d_h (B_h + C_h d_h)          ∂/∂v_h = r (B_h + 2 C_h d_h)

and the E-step before it turns ∂/∂r into ∂/∂logit, whose sums over the children give the iteration before its gradient.
"""

from typing import Any

import triton
import triton.language as tl

from qcn.kernels.triton_routing import (
    COEFFICIENTS,
    EPS_M,
    EPS_V,
    INTERPRETED,
    LOG2E,
    STATISTICS,
    constexpr,
    corner,
    density,
    gl,
    indices,
    jit,
    load_children,
    load_rotation,
    load_three,
    reciprocal,
    score,
    sigmoid,
    tile_of,
    votes_around,
    without,
    zeros,
)


@jit
def load_statistics(statistics, n, j, t, windows, live, G: constexpr):
    """Mass, mean and variance [N, P] that the forward kernel kept of iteration t."""
    at = statistics + (t * STATISTICS * windows + n) * G.parents + j
    step = windows * G.parents
    mass = gl.load(at, mask=live, other=1.0)
    return mass, load_three(at + step, step, live, 0.0), load_three(at + 4 * step, step, live, 1.0)


@jit
def gradient_sweep(inputs, image, place, before, weight, prior, mean, A, B, C, G: constexpr, TILE: constexpr):
    """One pass over the children: Σ g, Σ g d, Σ g d² with g the gradient of the logits and d = v − before.

    `before`, 3 × [N, P], is the mean that the responsibilities came from; `mean` the one they led to, around which A, B
    and C hold.
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
    mx, my, mz = before[0][:, None, :], before[1][:, None, :], before[2][:, None, :]
    ex, ey, ez = mx - mean[0][:, None, :], my - mean[1][:, None, :], mz - mean[2][:, None, :]
    wx, wy, wz = weight[0][:, None, :], weight[1][:, None, :], weight[2][:, None, :]
    bx, by, bz = B[0][:, None, :], B[1][:, None, :], B[2][:, None, :]
    cx, cy, cz = C[0][:, None, :], C[1][:, None, :], C[2][:, None, :]
    prior, A = prior[:, None, :], A[:, None, :]
    nothing = zeros([N, K, P], L)
    s, dx, dy, dz, qx, qy, qz = nothing, nothing, nothing, nothing, nothing, nothing, nothing
    u = load_children(pose, activation, image, place, lane, G)
    R = load_rotation(rotation, lane_of_rotor, j, G)
    for first in range(0, G.children, K):
        x, y, z, a = u
        vx, vy, vz = votes_around(R, x, y, z, mx, my, mz)
        u = load_children(pose, activation, image, place, first + K + lane, G)
        R = load_rotation(rotation, first + K + lane_of_rotor, j, G)
        ax, ay, az = vx * vx, vy * vy, vz * vz
        logit = prior - ax * wx - ay * wy - az * wz
        p = gl.exp2(logit - gl.max(logit, 2)[:, :, None])
        p = p * reciprocal(gl.sum(p, 2))[:, :, None]
        fx, fy, fz = vx + ex, vy + ey, vz + ez
        g = A + fx * (bx + cx * fx) + fy * (by + cy * fy) + fz * (bz + cz * fz)
        g = a[:, :, None] * p * (g - gl.sum(p * g, 2)[:, :, None])
        s += g
        dx += g * vx
        dy += g * vy
        dz += g * vz
        qx += g * ax
        qy += g * ay
        qz += g * az
    return (
        gl.sum(s, 1),
        (gl.sum(dx, 1), gl.sum(dy, 1), gl.sum(dz, 1)),
        (gl.sum(qx, 1), gl.sum(qy, 1), gl.sum(qz, 1)),
    )


@jit
def before_normalising(g, z, norm, live, G: constexpr):
    """In unit mode, from the gradient of z/|z| (given here as z) to that of z itself."""
    if G.unit:
        g = gl.where(live, g, 0.0)
        g = (g - z * gl.sum(g * z, 1)[:, None]) / norm
    return g


@jit
def along(g_mean, g_variance, g_z, mass, inverse, mean, variance, G: constexpr):
    """Along one axis: B and C of the M-step, and its share in A."""
    g_variance = g_variance - g_z * mass * (G.parents / G.children) / variance
    g_mean = g_mean - 2 * EPS_M * mean * inverse * g_variance
    C = g_variance * inverse
    return g_mean * inverse, C, -C * (variance - EPS_V)


@jit
def backward_windows_kernel(
    pose,
    activation,
    rotation,
    beta_u,
    beta_a,
    statistics,
    grad_out_pose,
    grad_out_activation,
    coefficients,  # out: [windows, 14·iterations, parents], what backward_children_kernel needs
    grad_beta,  # out: [2, windows, parents], the shares of each window
    windows,
    G: constexpr,
    K: constexpr,
):
    P: constexpr = G.padded_parents
    J: constexpr = G.parents
    ITERATIONS: constexpr = G.iterations
    TILE: constexpr = tile_of(1, K, P)
    N: constexpr = TILE.windows
    L: constexpr = TILE.layout
    AREA: constexpr = G.rows * G.columns
    COST: constexpr = 2 * G.parents / G.children
    start = gl.program_id(0) * N
    image, place = corner(gl.minimum(start + indices(N, without(L, 2, 1)), windows - 1), G)
    n = start + indices(N, without(L, 1, 1))[:, None]
    j = indices(P, without(L, 1, 0))[None, :]
    live = (n < windows) & (j < J)
    bu = gl.load(beta_u + j, mask=j < J, other=0.0)
    ba = gl.load(beta_a + j, mask=j < J, other=0.0)
    channel, spot = n // AREA * J + j, n % AREA
    at = coefficients + n.to(gl.int64) * (ITERATIONS * COEFFICIENTS * J) + j

    mass, mean, variance = load_statistics(statistics, n, j, ITERATIONS - 1, windows, live, G)
    z, log_spread, norm = score(mass, variance, bu, ba, live, G)
    g_out = gl.load(grad_out_activation + channel * AREA + spot, mask=live, other=0.0).to(gl.float32)
    g_z = g_out if G.logit else g_out * sigmoid(z) * sigmoid(-z)
    g_z = before_normalising(g_z, z, norm, live, G)
    out = grad_out_pose + channel * (3 * AREA) + spot
    gx, gy, gz = load_three(out, AREA, live, 0.0)
    gx, gy, gz = gx.to(gl.float32), gy.to(gl.float32), gz.to(gl.float32)
    hx = zeros([N, P], without(L, 1))
    hy, hz = hx, hx
    g_beta_u, g_beta_a = hx, hx
    for back in gl.static_range(ITERATIONS):
        g_beta_a += g_z
        g_beta_u -= 3 * COST * mass * g_z
        inverse = 1.0 / (mass + EPS_M)
        bx, cx, ax = along(gx, hx, g_z, mass, inverse, mean[0], variance[0], G)
        by, cy, ay = along(gy, hy, g_z, mass, inverse, mean[1], variance[1], G)
        bz, cz, az = along(gz, hz, g_z, mass, inverse, mean[2], variance[2], G)
        A = ax + ay + az - g_z * COST * (3 * bu + log_spread)
        field = at + (ITERATIONS - 1 - back) * (COEFFICIENTS * J)
        values = mean[0], mean[1], mean[2], A, bx, by, bz, cx, cy, cz
        for i in gl.static_range(10):
            gl.store(field + i * J, values[i], mask=live)
        if back < ITERATIONS - 1:
            after = mean
            mass, mean, variance = load_statistics(statistics, n, j, ITERATIONS - 2 - back, windows, live, G)
            z, log_spread, norm = score(mass, variance, bu, ba, live, G)
            weight, prior = density(z, log_spread, variance, j < J)
            field = at + (ITERATIONS - 2 - back) * (COEFFICIENTS * J)
            for h in gl.static_range(3):
                gl.store(field + (10 + h) * J, weight[h], mask=live)
            gl.store(field + 13 * J, prior, mask=live)
            inputs, B, C = (pose, activation, rotation), (bx, by, bz), (cx, cy, cz)
            s, d, q = gradient_sweep(inputs, image, place, mean, weight, prior, after, A, B, C, G, TILE)
            ix, iy, iz = 1.0 / variance[0], 1.0 / variance[1], 1.0 / variance[2]
            gx, gy, gz = d[0] * ix, d[1] * iy, d[2] * iz
            hx, hy, hz = 0.5 * ix * (q[0] * ix - s), 0.5 * iy * (q[1] * iy - s), 0.5 * iz * (q[2] * iz - s)
            g_z = before_normalising(s * sigmoid(-z), z, norm, live, G)
    gl.store(grad_beta + n * J + j, g_beta_u, mask=live)
    gl.store(grad_beta + (windows + n) * J + j, g_beta_a, mask=live)


CHILD_WARPS = 2  # of a program by children


@triton.constexpr_function
def tile_children(parents: int) -> int:
    """How many children a program's threads have room for, beside the parents."""
    return CHILD_WARPS * 32 * min(4, parents) // parents


@triton.constexpr_function
def children_layout(parents: int) -> Any:
    """Which thread holds what of a [children, parents] tile."""
    if INTERPRETED:
        return None
    per_thread = min(4, parents)
    lanes = parents // per_thread
    return gl.BlockedLayout([1, per_thread], [32 // lanes, lanes], [CHILD_WARPS, 1], [1, 0])


@jit
def backward_children_kernel(
    pose,
    activation,
    rotation,
    coefficients,
    grad_child,  # out: [windows, 4, children], the gradients of pose and activation by window
    grad_rotation,  # out: [chunks, children, 9, parents]
    windows,
    G: constexpr,
    PER_CHUNK: constexpr,
):
    """Each program has a few children in all windows of a chunk: the gradients of its rotors stay in registers."""
    P: constexpr = G.padded_parents
    J: constexpr = G.parents
    ITERATIONS: constexpr = G.iterations
    K: constexpr = tile_children(P)
    L: constexpr = children_layout(P)
    i = gl.program_id(0) * K + indices(K, without(L, 1))
    j = indices(P, without(L, 0))[None, :]
    parent = gl.minimum(j, J - 1) if P != J else j
    xx, xy, xz, yx, yy, yz, zx, zy, zz = load_rotation(rotation, i[:, None], j, G)
    nothing = zeros([K, P], L)
    gxx, gxy, gxz, gyx, gyy, gyz, gzx, gzy, gzz = (
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing,
    )  # fmt: skip
    chunk = gl.program_id(1)
    for step in range(PER_CHUNK):
        # Past the end: the last window once more, without weight and without being written.
        inside = chunk * PER_CHUNK + step < windows
        n = gl.minimum(chunk * PER_CHUNK + step, windows - 1)
        image, place = corner(n, G)
        x, y, z, a = load_children(pose, activation, image, place, i, G)
        a = gl.where(inside, a, 0.0)
        ux, uy, uz = x[:, None], y[:, None], z[:, None]
        vx, vy, vz = xx * ux + xy * uy + xz * uz, yx * ux + yy * uy + yz * uz, zx * ux + zy * uy + zz * uz
        at = coefficients + n.to(gl.int64) * (ITERATIONS * COEFFICIENTS * J) + parent
        mx, my, mz = gl.load(at), gl.load(at + J), gl.load(at + 2 * J)
        dx, dy, dz = vx - mx, vy - my, vz - mz
        # The first iteration: every parent has the same share of a child, and none if it only pads the tile.
        share = gl.where(j < J, 1.0 / J, 0.0)
        cx, cy, cz = gl.load(at + 7 * J) * dx, gl.load(at + 8 * J) * dy, gl.load(at + 9 * J) * dz
        ex, ey, ez = gl.load(at + 4 * J) + cx, gl.load(at + 5 * J) + cy, gl.load(at + 6 * J) + cz
        g_activation = gl.sum(share * (gl.load(at + 3 * J) + dx * ex + dy * ey + dz * ez), 1)
        r = a[:, None] * share
        gx, gy, gz = r * (ex + cx), r * (ey + cy), r * (ez + cz)
        for t in gl.static_range(1, ITERATIONS):
            before = at + (t - 1) * (COEFFICIENTS * J)
            tx = gl.load(before + 10 * J) * dx
            ty = gl.load(before + 11 * J) * dy
            tz = gl.load(before + 12 * J) * dz
            logit = gl.where(j < J, gl.load(before + 13 * J), float("-inf")) - tx * dx - ty * dy - tz * dz
            p = gl.exp2(logit - gl.max(logit, 1)[:, None])
            p = p * reciprocal(gl.sum(p, 1))[:, None]
            now = at + t * (COEFFICIENTS * J)
            dx, dy, dz = vx - gl.load(now), vy - gl.load(now + J), vz - gl.load(now + 2 * J)
            cx, cy, cz = gl.load(now + 7 * J) * dx, gl.load(now + 8 * J) * dy, gl.load(now + 9 * J) * dz
            ex, ey, ez = gl.load(now + 4 * J) + cx, gl.load(now + 5 * J) + cy, gl.load(now + 6 * J) + cz
            g = gl.load(now + 3 * J) + dx * ex + dy * ey + dz * ez
            total = gl.sum(p * g, 1)
            g_activation += total
            r = a[:, None] * p
            # ∂logit/∂v = −d/σ², and the weights are log2(e)/2σ².
            g = (-2.0 / LOG2E) * r * (g - total[:, None])
            gx += r * (ex + cx) + g * tx
            gy += r * (ey + cy) + g * ty
            gz += r * (ez + cz) + g * tz
        gxx += gx * ux
        gxy += gx * uy
        gxz += gx * uz
        gyx += gy * ux
        gyy += gy * uy
        gyz += gy * uz
        gzx += gz * ux
        gzy += gz * uy
        gzz += gz * uz
        out = grad_child + n.to(gl.int64) * (4 * G.children) + i
        live = i < gl.where(inside, G.children, 0)
        gl.store(out, gl.sum(xx * gx + yx * gy + zx * gz, 1), mask=live)
        gl.store(out + G.children, gl.sum(xy * gx + yy * gy + zy * gz, 1), mask=live)
        gl.store(out + 2 * G.children, gl.sum(xz * gx + yz * gy + zz * gz, 1), mask=live)
        gl.store(out + 3 * G.children, g_activation, mask=live)
    i = i[:, None]
    live = (i < G.children) & (j < J)
    out = grad_rotation + (chunk * G.children + i) * (9 * J) + j
    gradient = gxx, gxy, gxz, gyx, gyy, gyz, gzx, gzy, gzz
    for place in gl.static_range(9):
        gl.store(out + place * J, gradient[place], mask=live)


@triton.jit
def fold_kernel(grad_child, grad_pose, grad_activation, total, G: tl.constexpr, BLOCK: tl.constexpr):
    """Adds up what the windows that a child lies in say of it: from [windows, 4, children] to the maps."""
    AREA: tl.constexpr = G.height * G.width
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = at % G.channels
    spot = at // G.channels % AREA
    image = at // G.channels // AREA
    y, x = spot // G.width, spot % G.width
    gx = tl.zeros([BLOCK], tl.float32)
    gy, gz, ga = gx, gx, gx
    for ky in range(G.window_height):
        for kx in range(G.window_width):
            row, column = (y - ky) // G.stride, (x - kx) // G.stride
            inside = (y >= ky) & (x >= kx) & (row < G.rows) & (column < G.columns) & (at < total)
            inside = inside & (row * G.stride == y - ky) & (column * G.stride == x - kx)
            n = (image * G.rows + row) * G.columns + column
            p = grad_child + n.to(tl.int64) * (4 * G.children) + (ky * G.window_width + kx) * G.channels + c
            gx += tl.load(p, mask=inside, other=0.0)
            gy += tl.load(p + G.children, mask=inside, other=0.0)
            gz += tl.load(p + 2 * G.children, mask=inside, other=0.0)
            ga += tl.load(p + 3 * G.children, mask=inside, other=0.0)
    live = at < total
    p = grad_pose + (image * G.channels + c) * (3 * AREA) + spot
    tl.store(p, gx, mask=live)
    tl.store(p + AREA, gy, mask=live)
    tl.store(p + 2 * AREA, gz, mask=live)
    tl.store(grad_activation + (image * G.channels + c) * AREA + spot, ga, mask=live)
