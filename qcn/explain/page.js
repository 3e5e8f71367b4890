// Turns the drawings in three dimensions: by dragging, or by the arrow keys. Those of one group turn together.
// project() in drawing.py does the same for the first view; without scripts the page stays as that shows it.
const groups = {};
for (const view of document.querySelectorAll("svg.globe")) {
  const points = (text) => text.split(" ").map((point) => point.split(",").map(Number));
  const parts = [...view.querySelectorAll("[data-at]")].map((part) => [part, points(part.dataset.at)]);
  const name = view.dataset.group;
  groups[name] ??= { yaw: Number(view.dataset.yaw), pitch: Number(view.dataset.pitch), parts: [] };
  const group = groups[name];
  group.parts.push(...parts);
  let last = null;
  view.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    view.setPointerCapture(event.pointerId);
  });
  view.addEventListener("pointermove", (event) => {
    if (last === null) return;
    const scale = 3.4 / view.clientWidth;
    turn(group, (event.clientX - last[0]) * scale, (event.clientY - last[1]) * scale);
    last = [event.clientX, event.clientY];
  });
  for (const ending of ["pointerup", "pointercancel"]) view.addEventListener(ending, () => { last = null; });
  view.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] }[event.key];
    if (!step) return;
    event.preventDefault();
    turn(group, ...step);
  });
}

function turn(group, right, down) {
  group.yaw += right;
  group.pitch = Math.max(-1.5, Math.min(1.5, group.pitch + down));
  const [cy, sy, cp, sp] = [Math.cos(group.yaw), Math.sin(group.yaw), Math.cos(group.pitch), Math.sin(group.pitch)];
  for (const [part, points] of group.parts) {
    const flat = points.map(([x, y, z]) => {
      const [across, towards] = [x * cy + z * sy, z * cy - x * sy];
      return [100 * across, -100 * (y * cp - towards * sp), towards * cp + y * sp];
    });
    if (part.tagName === "polyline") {
      part.setAttribute("points", flat.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
    } else {
      part.setAttribute("transform", `translate(${flat[0][0].toFixed(1)} ${flat[0][1].toFixed(1)})`);
    }
    part.classList.toggle("behind", flat.at(-1)[2] < 0);
  }
}
