// The renderer of `viewpoints` (qcn/data/viewpoints/raytrace.py) in double precision: the same rays, lamps and surfaces.
// Pictures differ from Python's by rounding alone: by 1 of 255, and on a few pixels at edges by more (docs/web.md).
"use strict";

const NOTHING = 2 ** 31 - 1,
  STEPS = 2 ** 20,
  NEAREST = 4,
  FACES = 256,
  FAR = 1e6;

const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const times = (matrix, vector) => matrix.map((row) => dot(row, vector));
const transposed = (matrix) => matrix[0].map((_, i) => matrix.map((row) => row[i]));
const product = (a, b) => a.map((row) => transposed(b).map((column) => dot(row, column)));
const scaled = (vector, factor) => vector.map((x) => x * factor);
const normalised = (vector) => scaled(vector, 1 / Math.sqrt(dot(vector, vector)));
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

// Right, up and towards the viewer, for one who stands at these angles (in degrees).
function viewAxes(azimuth, elevation) {
  const a = (azimuth * Math.PI) / 180,
    e = (elevation * Math.PI) / 180;
  const ca = Math.cos(a),
    sa = Math.sin(a),
    ce = Math.cos(e),
    se = Math.sin(e);
  return [
    [-sa, ca, 0],
    [-se * ca, -se * sa, ce],
    [ce * ca, ce * sa, se],
  ];
}

// Where rays pass the planes of a solid: t = a u + b v + c of each, those that face the viewer first.
function planesSeen(solid, axes) {
  const planes = solid.planes.map((plane, face) => {
    const [right, up, along] = times(axes, plane),
      facing = Math.abs(along) < 1e-4 ? 1e-4 : along;
    return { facing, face, a: right / facing, b: up / facing, c: -plane[3] / facing };
  });
  planes.sort((one, other) => other.facing - one.facing);
  return { fronts: planes.filter((one) => one.facing > 0), backs: planes.filter((one) => one.facing <= 0) };
}

// Where rays meet its quadric: half a chord before and after a middle; null where there is none.
function quadricSeen(solid, axes) {
  if (!solid.matrix) return null;
  const [right, up, along] = axes.map((axis) => times(solid.matrix, axis));
  const square = Math.max(dot(along, along), 1e-9),
    shift = scaled(times(solid.matrix, solid.centre), -1);
  const middle = [right, up, shift].map((term) => dot(term, along) / square);
  const across = [right, up, shift].map((term, i) => term.map((x, k) => x - middle[i] * along[k]));
  const gram = across.map((one) => across.map((other) => dot(one, other) / square));
  gram[2][2] -= 1 / square;
  return { middle, gram };
}

// What side × side parallel rays meet first: t in steps, then the face in eight bits; NOTHING.
function cast(toy, axes, side) {
  const met = new Int32Array(side * side).fill(NOTHING);
  let first = 0;
  for (const solid of toy.solids) {
    const [x, y] = times(axes, solid.middle),
      edge = (at) => clamp(((at + 1) / 2) * side, 0, side);
    const left = Math.floor(edge(x - solid.reach)),
      right = Math.ceil(edge(x + solid.reach));
    const top = Math.floor(edge(-y - solid.reach)),
      bottom = Math.ceil(edge(-y + solid.reach));
    const { fronts, backs } = planesSeen(solid, axes),
      quadric = quadricSeen(solid, axes);
    for (let row = top; row < bottom; ++row) {
      const v = 1 - (2 * row + 1) / side;
      for (let column = left; column < right; ++column) {
        const u = (2 * column + 1) / side - 1;
        let entry = -FAR,
          leave = FAR,
          face = 0;
        for (const p of fronts) {
          const t = p.a * u + (p.b * v + p.c);
          if (t > entry) ((entry = t), (face = p.face));
        }
        for (const p of backs) leave = Math.min(leave, p.a * u + (p.b * v + p.c));
        if (entry >= leave) continue;
        if (quadric) {
          const { middle, gram } = quadric;
          const chord = -(
            u * (gram[0][0] * u + 2 * gram[0][2]) +
            gram[2][2] +
            v * (gram[1][1] * v + 2 * gram[1][2]) +
            2 * gram[0][1] * u * v
          );
          if (chord <= 0) continue;
          const half = Math.sqrt(chord),
            centre = middle[0] * u + (middle[1] * v + middle[2]);
          if (centre - half > entry) ((entry = centre - half), (face = solid.planes.length));
          leave = Math.min(leave, centre + half);
          if (entry >= leave) continue;
        }
        const code = Math.trunc((entry + NEAREST) * STEPS) * FACES + face + first;
        if (code < met[row * side + column]) met[row * side + column] = code;
      }
    }
    first += solid.planes.length + (solid.matrix ? 1 : 0);
  }
  return met;
}

// The normal of every face, as a function of the point there, along right, up and w of a view; and its albedo.
function surfaces(toy, axes) {
  const faces = [];
  for (const solid of toy.solids) {
    for (const plane of solid.planes) {
      const normal = times(axes, plane);
      faces.push({ albedo: solid.albedo, normal: () => normal });
    }
    if (!solid.matrix) continue;
    const gradient = product(transposed(solid.matrix), solid.matrix),
      turned = product(product(axes, gradient), transposed(axes));
    const shift = times(axes, times(gradient, solid.centre));
    faces.push({ albedo: solid.albedo, normal: (point) => times(turned, point).map((x, i) => x - shift[i]) });
  }
  return faces;
}

const distance = (code) => Math.floor(code / FACES) / STEPS - NEAREST;

// The brightness of a point of a surface: light from everywhere, most from above; and the lamp's, where it reaches.
function shaded(scene, view, code, u, v) {
  const { turn, light, reached, side, directions } = view;
  const face = view.faces[code % FACES],
    point = [u, v, -distance(code)],
    normal = normalised(face.normal(point));
  const [x, y, z] = times(
    turn,
    point.map((at, i) => at + (3 / side) * normal[i]),
  );
  const column = clamp(Math.trunc(((1 + x) / 2) * side), 0, side - 1),
    row = clamp(Math.trunc(((1 - y) / 2) * side), 0, side - 1);
  const lamp = distance(reached[row * side + column]) > -z - 2 / side ? light.strength : 0;
  const [facing, mirrored, upward] = directions.map((direction) => dot(direction, normal));
  const matt = light.ambient * (0.7 + 0.3 * upward) + lamp * Math.max(facing, 0);
  return face.albedo * matt + lamp * scene.gloss * Math.max(mirrored, 0) ** scene.shininess;
}

// The brightness of the ground under a pixel, with the toy's shadow on it, which is read between four pixels.
function grounded(scene, view, u, v) {
  const { turn, light, blocked, axes, floor, size } = view;
  const [up, towards] = [axes[1][2], axes[2][2]];
  const [x, y] = times(turn, [u, v, (floor - up * v) / towards]);
  const column = ((x + 1) * size - 1) / 2,
    row = ((1 - y) * size - 1) / 2,
    left = Math.floor(column),
    top = Math.floor(row);
  const at = (i, j) => (i < 0 || j < 0 || i >= size || j >= size ? 0 : blocked[i * size + j]);
  const right = column - left,
    low = row - top;
  const dark =
    (1 - low) * ((1 - right) * at(top, left) + right * at(top, left + 1)) +
    low * ((1 - right) * at(top + 1, left) + right * at(top + 1, left + 1));
  return scene.ground * (light.ambient + light.strength * Math.sin((light.elevation * Math.PI) / 180) * (1 - dark));
}

// The picture of one eye, size × size bytes.
function eye(scene, toy, view) {
  const { size, side } = view,
    n = scene.samples,
    picture = new Uint8Array(size * size);
  const met = cast(toy, view.axes, side);
  for (let row = 0; row < size; ++row) {
    for (let column = 0; column < size; ++column) {
      let body = 0,
        covered = 0;
      for (let i = 0; i < n * n; ++i) {
        const r = row * n + Math.floor(i / n),
          c = column * n + (i % n),
          code = met[r * side + c];
        if (code === NOTHING) continue;
        body += Math.trunc(shaded(scene, view, code, (2 * c + 1) / side - 1, 1 - (2 * r + 1) / side) * 65536) / 65536;
        ++covered;
      }
      const ground = covered < n * n ? grounded(scene, view, (2 * column + 1) / size - 1, 1 - (2 * row + 1) / size) : 0;
      picture[row * size + column] = clamp(
        Math.round(255 * (body / (n * n) + (1 - covered / (n * n)) * ground)),
        0,
        255,
      );
    }
  }
  return picture;
}

// A stereo pair of a toy: two channels of bytes, next to each other (HWC), as libqcn takes them. Angles are in degrees.
function renderToy(scene, toy, azimuth, elevation, light) {
  const size = scene.size,
    n = scene.samples,
    side = n * size;
  const lamp = viewAxes(azimuth + light.azimuth, light.elevation),
    reached = cast(toy, lamp, side);
  const blocked = new Float64Array(size * size);
  reached.forEach((code, i) => {
    if (code !== NOTHING) blocked[Math.floor(i / side / n) * size + Math.floor((i % side) / n)] += 1 / (n * n);
  });
  const pixels = new Uint8Array(2 * size * size);
  [-scene.stereo / 2, scene.stereo / 2].forEach((offset, channel) => {
    const axes = viewAxes(azimuth + offset, elevation),
      turn = product(lamp, transposed(axes));
    const directions = [turn[2], normalised([turn[2][0], turn[2][1], turn[2][2] + 1]), axes.map((axis) => axis[2])];
    const view = {
      axes,
      turn,
      light,
      reached,
      blocked,
      directions,
      size,
      side,
      floor: toy.floor,
      faces: surfaces(toy, axes),
    };
    eye(scene, toy, view).forEach((byte, i) => {
      pixels[2 * i + channel] = byte;
    });
  });
  return { pixels, width: size, height: size, channels: 2 };
}
