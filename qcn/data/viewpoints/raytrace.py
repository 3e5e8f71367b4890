"""Pictures of toys, by casting rays in closed form: camera and lamp are far away, so the rays of a view are parallel.

Pixel (u, v) of a view sees along o(u, v) − t·w with o = u·right + v·up, where w points towards the viewer. Every bound
of a solid is then a simple function of the pixel. A plane is met at a t affine in u and v; a quadric is met half a
chord before and after a middle that is affine too, and the square of the half chord is a polynomial of degree two. So
the geometry of a view is a few coefficients a solid, and a ray test is a few additions. Seen from the lamp, the same
rays give the shadows.

Small things (axes, coefficients, windows) are computed in NumPy in float64, pixels in float32 on the device.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qcn.data.viewpoints.light import GLOSS, GROUND_ALBEDO, SAMPLES, SHININESS, STEREO, Light
from qcn.data.viewpoints.solids import Floats, Solid, view_axes
from qcn.data.viewpoints.toys import Toy

Angles = NDArray[np.int64]

FAR = 1e6

# What a ray meets is one whole number: t from −4 in steps of 2⁻²⁰, then the face in eight bits. Less is nearer.
STEPS, NEAREST, FACES = 2**20, 4.0, 256
NOTHING = 2**31 - 1


# ---- rays ------------------------------------------------------------------------------------------------------------


def cast(toy: Toy, axes: Floats, side: int, device: torch.device) -> Tensor:
    """What side × side parallel rays of each view meet first, int32 [V, side, side]; NOTHING, or for `decode`.

    axes [V, 3, 3] are as `view_axes` gives them.
    """
    met = torch.full((len(axes) * side * side,), NOTHING, dtype=torch.int32, device=device)
    first = 0
    for solid in toy.solids:
        places, u, v = _window(solid, axes, side, device)
        entry, leave, face = _planes(solid, axes, u, v)
        if solid.matrix.any():
            near, far = _quadric(solid, axes, u, v)
            face = torch.where(near > entry, len(solid.planes), face)
            entry, leave = torch.maximum(entry, near), torch.minimum(leave, far)
        code = ((entry + NEAREST) * STEPS).int() * FACES + (face + first)
        code = torch.where(entry < leave, code, NOTHING)
        met.put_(places, torch.minimum(code, met.take(places)))
        first += len(solid.planes) + bool(solid.matrix.any())
    return met.view(-1, side, side)


def decode(met: Tensor) -> tuple[Tensor, Tensor]:
    """The distance t and the face, an index into `_surfaces`, out of what `cast` returns."""
    return (met // FACES).float() / STEPS - NEAREST, (met % FACES).long()


def _window(solid: Solid, axes: Floats, side: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels a solid may touch: a rectangle in each view, of the same size H × W in all of them.

    Returns their flat places [V, H, W] in an image stack [V, side, side], u [V, 1, W] and v [V, H, 1].
    """
    spots = (solid.hull @ axes[:, :2].swapaxes(1, 2)) * (1, -1)  # [V, P, 2] right and down
    low = np.clip(np.floor((spots.min(1) + 1) / 2 * side), 0, side - 1).astype(np.int64)
    high = np.clip(np.ceil((spots.max(1) + 1) / 2 * side), 1, side).astype(np.int64)
    width, height = (high - low).max(0)
    left, top = np.minimum(low, (side - width, side - height)).T[..., None]
    columns, rows = left + np.arange(width), top + np.arange(height)  # [V, W], [V, H]
    u, v = (2 * columns + 1) / side - 1, 1 - (2 * rows + 1) / side
    rows = (rows + side * np.arange(len(axes))[:, None]) * side
    flat, line = torch.from_numpy(rows).to(device)[..., None], torch.from_numpy(columns).to(device)[:, None]
    return flat + line, _pixels(u, device)[:, None], _pixels(v, device)[..., None]


def _planes(solid: Solid, axes: Floats, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where rays have passed all planes that face the viewer, where they pass one of the others, and which came last.

    Each is [V, H, W], or a scalar where there are no planes.
    """
    if not len(solid.planes):
        return u.new_tensor(-FAR), u.new_tensor(FAR), torch.zeros((), dtype=torch.int32, device=u.device)
    right, up, facing = np.einsum("kc,vjc->jkv", solid.planes[:, :3], axes)  # [K, V] each
    facing = np.where(np.abs(facing) < 1e-4, 1e-4, facing)  # parallel to the rays: tilted a little
    order = np.argsort(-facing, axis=0)  # those that face the viewer come first
    terms = np.stack([right, up, np.broadcast_to(-solid.planes[:, 3:], facing.shape)]) / facing
    terms = np.take_along_axis(terms, order[None], 1)
    fronts = (facing > 0).sum(0)  # [V]
    slot = np.arange(len(facing))[:, None]

    def passed(here: slice, others: NDArray[np.bool_], otherwise: float) -> Tensor:
        kept = np.where(others[here], np.array([0, 0, otherwise])[:, None, None], terms[:, here])
        a, b, c = _pixels(kept, u.device)[..., None, None]
        return a * u + (b * v + c)  # [slots, V, H, W]

    entries = passed(slice(0, fronts.max()), slot >= fronts, -FAR)
    leave = passed(slice(min(fronts.min(), len(facing) - 1), None), slot < fronts, FAR).amin(0)
    faces = torch.from_numpy(order.astype(np.int32)).to(u.device)[..., None, None]
    entry, face = entries[0], faces[0]
    for other, its_face in zip(entries[1:], faces[1:], strict=False):
        face = torch.where(other > entry, its_face, face)
        entry = torch.maximum(entry, other)
    return entry, leave, face


def _quadric(solid: Solid, axes: Floats, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Where the rays enter and leave the quadric, two of [V, H, W]; rays that miss it enter at FAR."""
    turned = axes @ solid.matrix.T  # [V, 3, 3] right, up, w where the quadric is a unit sphere
    along = turned[:, 2]
    square = np.maximum((along**2).sum(-1), 1e-9)  # [V]
    terms = np.stack([turned[:, 0], turned[:, 1], np.broadcast_to(-solid.matrix @ solid.centre, along.shape)], 1)
    middle = np.einsum("vir,vr->iv", terms, along) / square  # [3, V] t of the middle is their sum with (u, v, 1)
    across = terms - middle.T[:, :, None] * along[:, None]  # [V, 3, 3] the part at right angles to the ray
    gram = np.einsum("vir,vjr->ijv", across, across) / square
    gram[2, 2] -= 1 / square
    a, b, c = _pixels(middle, u.device)[..., None, None]
    uu, uv, u1, _, vv, v1, _, _, one = _pixels(gram.reshape(9, -1), u.device)[..., None, None]
    chord = -((u * (uu * u + 2 * u1) + one) + v * (vv * v + 2 * v1) + (2 * uv * u) * v)  # the half chord's square
    half = chord.clamp_min(0).sqrt()
    centre = a * u + (b * v + c)
    return torch.where(chord > 0, centre - half, FAR), centre + half


def _pixels(array: Floats, device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.float32)).to(device)


# ---- light -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Samples:
    """The rays of one eye that met the toy, H of them. Points and normals are along right, up and w of their view."""

    view: Tensor  # [H]
    pixel: Tensor  # [H] the flat place of the sample's pixel in [A, size, size]
    points: Tensor  # [3, H]
    normals: Tensor  # [3, H]
    albedo: Tensor  # [H]


@torch.no_grad()
def render(
    toy: Toy, elevations: Angles, azimuths: Angles, lights: tuple[Light, ...], *, size: int, device: torch.device
) -> NDArray[np.uint8]:
    """Stereo pairs of a toy from every elevation and azimuth under every light: uint8 [E, A, L, 2, size, size]."""
    side = SAMPLES * size

    def met(axes: Floats) -> Tensor:
        return cast(toy, axes.reshape(-1, 3, 3), side, device).view(*axes.shape[:-2], side, side)

    lamps = np.stack([view_axes(azimuths + light.azimuth, light.elevation) for light in lights])  # [L, A, 3, 3]
    reached = met(lamps)  # [L, A, side, side] what each lamp shines on
    blocked = F.avg_pool2d((reached != NOTHING).float(), SAMPLES)  # [L, A, size, size] the part kept from the ground
    offsets = np.array([-STEREO / 2, STEREO / 2])[:, None]
    views = view_axes(azimuths + offsets, elevations[:, None, None])  # [E, 2, A, 3, 3]
    seen = met(views)  # [E, 2, A, side, side]
    pictures = torch.empty((*views.shape[:2], *blocked.shape), dtype=torch.uint8, device=device)
    for e, eye in np.ndindex(*views.shape[:2]):
        axes = views[e, eye]
        samples = _samples(toy, axes, seen[e, eye])
        cover = _gathered(torch.ones_like(samples.albedo), samples, blocked.shape[1:])
        for i, light in enumerate(lights):
            # The lamp goes round with the camera: seen from there, it stands still.
            turn = lamps[i, 0] @ axes[0].T  # [3, 3] the lamp's axes along the camera's
            ground = _ground(toy.floor, axes[0], turn, blocked[i], light)
            body = _gathered(_shaded(samples, axes[0], turn, reached[i], light), samples, blocked.shape[1:])
            pictures[e, eye, i] = (255 * (body + (1 - cover) * ground)).round().clamp(0, 255).byte()
    return np.ascontiguousarray(pictures.permute(0, 3, 2, 1, 4, 5).cpu().numpy())


def _samples(toy: Toy, axes: Floats, met: Tensor) -> _Samples:
    """The surface under each ray of `met` [A, side, side] that met something."""
    side = met.shape[-1]
    size = side // SAMPLES
    hits = (met.view(-1) != NOTHING).nonzero()[:, 0]
    view, row, column = hits // side**2, hits // side % side, hits % side
    t, face = decode(met.view(-1)[hits])
    points = torch.stack([(2 * column + 1) / side - 1, 1 - (2 * row + 1) / side, -t, torch.ones_like(t)])
    table, albedo = _surfaces(toy, axes)
    normals = _pixels(table, met.device)[view, face]  # [H, 3, 4]
    normals = F.normalize((normals * points.T[:, None]).sum(-1), dim=-1).T
    pixel = (view * size + row // SAMPLES) * size + column // SAMPLES
    return _Samples(view, pixel, points[:3], normals, _pixels(albedo, met.device)[face])


def _surfaces(toy: Toy, axes: Floats) -> tuple[Floats, Floats]:
    """The faces of a toy, in the order `cast` counts them: their normals and their albedo [F].

    The normals are matrices [A, F, 3, 4] that take (u, v, −t, 1) to the normal's direction there, along right, up, w.
    """
    tables: list[Floats] = []
    albedo: list[float] = []
    for solid in toy.solids:
        tables += [np.column_stack([np.zeros((3, 3)), plane[:3]]) for plane in solid.planes]
        if solid.matrix.any():
            gradient = solid.matrix.T @ solid.matrix
            tables.append(np.column_stack([gradient, -gradient @ solid.centre]))
        albedo += [solid.albedo] * (len(tables) - len(albedo))
    table = axes[:, None] @ np.array(tables)
    return np.concatenate([table[..., :3] @ axes[:, None].swapaxes(2, 3), table[..., 3:]], -1), np.array(albedo)


def _shaded(samples: _Samples, axes: Floats, turn: Floats, reached: Tensor, light: Light) -> Tensor:
    """The brightness [H] of each sample: light from everywhere, most from above; and the lamp's, where it reaches."""
    side, normals = reached.shape[-1], samples.normals
    # Off the surface by a ray's width or two, so that it does not shade itself.
    x, y, z = _turned(turn, samples.points + (3 / side) * normals)
    column = ((1 + x) / 2 * side).long().clamp(0, side - 1)
    row = ((1 - y) / 2 * side).long().clamp(0, side - 1)
    t, _ = decode(reached.view(-1)[(samples.view * side + row) * side + column])
    lamp = light.strength * (t > -z - 2 / side)
    halfway = turn[2] + (0, 0, 1)
    directions = np.stack([turn[2], halfway / np.linalg.norm(halfway), axes[:, 2]])  # the lamp, its reflex, the sky
    facing, mirrored, upward = _turned(directions, normals)
    matt = light.ambient * (0.7 + 0.3 * upward) + lamp * facing.clamp_min(0)
    return samples.albedo * matt + lamp * GLOSS * mirrored.clamp_min(0) ** SHININESS


def _ground(floor: float, axes: Floats, turn: Floats, blocked: Tensor, light: Light) -> Tensor:
    """The brightness [A, size, size] of the ground under each pixel, with the toy's shadow on it."""
    up, towards = axes[1:, 2]
    # A ray is on the ground at t = (v·up − floor) / towards. So the points there are affine in u and v, and so are the
    # pixels where the lamp sees them.
    onto = np.array([[1, 0, 0], [0, 1, 0], [0, -up / towards, floor / towards]])  # (u, v, 1) to right, up, w
    there = (turn[:2] @ onto) * [[1, -1, 1], [-1, 1, -1]]  # `affine_grid` counts v downwards, on both sides
    grid = F.affine_grid(_pixels(there[None], blocked.device), [1, 1, *blocked.shape[1:]], align_corners=False)
    lit = 1 - F.grid_sample(blocked[None], grid, align_corners=False)[0]
    steepness = float(np.sin(np.radians(light.elevation)))
    return GROUND_ALBEDO * (light.ambient + light.strength * steepness * lit)


def _turned(matrix: Floats, rows: Tensor) -> Tensor:
    """The product [3, H] of matrix [3, 3] and rows [3, H], in full float32, whatever matmul is allowed to do."""
    return (_pixels(matrix, rows.device)[..., None] * rows).sum(1)


def _gathered(values: Tensor, samples: _Samples, shape: tuple[int, ...]) -> Tensor:
    """The values [H] of the samples of each pixel, as their mean over all its rays: `shape` [A, size, size].

    They are added as whole numbers, so that the sum does not depend on the order.
    """
    total = torch.zeros(int(np.prod(shape)), dtype=torch.int32, device=values.device)
    total.index_add_(0, samples.pixel, (values * 2**16).int())
    return total.view(shape).float() / (2**16 * SAMPLES**2)
