// What a person shows the networks: a toy, a drawing, a picture, the camera, a test image.
"use strict";

const context = (canvas) => canvas.getContext("2d", { willReadFrequently: true });

// The picture of a canvas with the channels that the network takes. A network of two eyes gets it twice.
function imageOf(canvas) {
  const { width, height } = canvas,
    rgba = context(canvas).getImageData(0, 0, width, height).data;
  if (channels !== 2) return { pixels: new Uint8Array(rgba.buffer), width, height, channels: 4 };
  const pixels = new Uint8Array(2 * width * height);
  for (let i = 0; i < width * height; ++i)
    pixels.fill(0.299 * rgba[4 * i] + 0.587 * rgba[4 * i + 1] + 0.114 * rgba[4 * i + 2], 2 * i, 2 * i + 2);
  return { pixels, width, height, channels };
}

// Packed bytes on a canvas: grey, colour, or of two eyes the left.
function paint(canvas, { pixels, width, height, channels: count }) {
  Object.assign(canvas, { width, height });
  const picture = context(canvas).createImageData(width, height);
  for (let i = 0; i < width * height; ++i) {
    for (let channel = 0; channel < 3; ++channel)
      picture.data[4 * i + channel] = pixels[count * i + (count === 3 ? channel : 0)];
    picture.data[4 * i + 3] = 255;
  }
  context(canvas).putImageData(picture, 0, 0);
}

// Whether the answer is right, where the class is known.
const verdict = ({ best }, label) => (best === label ? "This is right." : `This is wrong: it is ${classes[label]}.`);

const toy = {
  azimuth: 30,
  elevation: 40,
  show() {
    const chosen = data.scene.toys[$("which").value],
      image = renderToy(data.scene, chosen, this.azimuth, this.elevation, data.scene.lights[$("light").value]);
    paint($("toy"), image);
    const angles = { azimuth: Math.round(((this.azimuth % 360) + 360) % 360), elevation: Math.round(this.elevation) },
      familiar = Object.entries(data.scene.familiar),
      within = (at, [from, to]) => (from <= to ? at >= from && at <= to : at >= from || at <= to),
      known = familiar.every(([axis, range]) => within(angles[axis], range));
    $("angles").textContent =
      `Azimuth ${angles.azimuth}°, elevation ${angles.elevation}°: ${known ? "as in training" : "a new viewpoint"}. Training had ${familiar.map(([axis, [from, to]]) => `${axis} ${from}° to ${to}°`).join(", ")}.`;
    classify(image, (answer) => `${verdict(answer, classes.indexOf(chosen.category))} ${RUNS}`);
  },
  turn(right, up) {
    this.azimuth += right;
    this.elevation = Math.min(85, Math.max(10, this.elevation + up));
    this.show();
  },
  start() {
    data.scene.toys.forEach(({ category, instance }, i) =>
      $("which").append(made("option", { value: i, textContent: `${category} ${instance}` })),
    );
    data.scene.lights.forEach((_, i) => $("light").append(made("option", { value: i, textContent: i + 1 })));
    $("which").onchange = $("light").onchange = () => this.show();
    const canvas = $("toy");
    // By places, not by movementX: that has other units in every browser, and none for a finger in some.
    let at;
    canvas.onpointerdown = (event) => {
      canvas.setPointerCapture(event.pointerId);
      at = event;
    };
    canvas.onpointermove = (event) => {
      if (!event.buttons || !at) return;
      this.turn((at.clientX - event.clientX) / 2, (event.clientY - at.clientY) / 3);
      at = event;
    };
    canvas.onkeydown = (event) => {
      const steps = { ArrowLeft: [5, 0], ArrowRight: [-5, 0], ArrowUp: [0, 5], ArrowDown: [0, -5] }[event.key];
      if (!steps) return;
      event.preventDefault();
      this.turn(...steps);
    };
    $("spin").onclick = () => {
      this.spinning = !this.spinning;
      $("spin").setAttribute("aria-pressed", this.spinning);
      if (this.spinning) this.spin();
    };
  },
  async spin() {
    while (this.spinning) {
      this.turn(3, 0);
      await busy;
      await new Promise(requestAnimationFrame);
    }
  },
  stop() {
    this.spinning = false;
    $("spin").setAttribute("aria-pressed", "false");
  },
};

const drawing = {
  pen: [140, 140],
  down: false,
  start() {
    const canvas = $("drawing"),
      place = (event) => {
        const box = canvas.getBoundingClientRect();
        return [((event.clientX - box.left) * 280) / box.width, ((event.clientY - box.top) * 280) / box.height];
      };
    canvas.onpointerdown = (event) => {
      canvas.setPointerCapture(event.pointerId);
      $("pen").hidden = true;
      this.pen = place(event);
      this.line(this.pen);
    };
    canvas.onpointermove = (event) => {
      if (event.buttons) this.line(place(event));
    };
    canvas.onkeydown = (event) => {
      const step = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -8], ArrowDown: [0, 8] }[event.key];
      if (step) {
        const to = this.pen.map((at, i) => Math.min(270, Math.max(10, at + step[i])));
        if (this.down) this.line(to);
        else this.pen = to;
      } else if (event.key === " ") {
        this.down = !this.down;
        if (this.down) this.line(this.pen);
      } else if (event.key === "Delete" || event.key === "Backspace") this.clear();
      else return;
      this.showPen();
      event.preventDefault();
    };
    $("clear").onclick = () => this.clear();
    this.clear();
  },
  // Where the pen is, and whether it is down, for those who draw by keyboard.
  showPen() {
    const [left, top] = this.pen.map((at) => `${at / 2.8}%`);
    Object.assign($("pen").style, { left, top });
    Object.assign($("pen"), { hidden: false, className: this.down ? "down" : "" });
  },
  line(to) {
    const pen = context($("drawing"));
    Object.assign(pen, { strokeStyle: "#fff", lineWidth: 22, lineCap: "round", lineJoin: "round" });
    pen.beginPath();
    pen.moveTo(...this.pen);
    pen.lineTo(...to);
    pen.stroke();
    this.pen = to;
    this.show();
  },
  clear() {
    const pen = context($("drawing"));
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, 280, 280);
    this.down = false;
  },
  // Digits of MNIST fill 20 of 28 pixels and have their centre of mass in the middle: so must a drawn one.
  show() {
    if (!manifests[0].source.data.startsWith("mnist")) return classify(imageOf($("drawing")));
    const { data: rgba } = context($("drawing")).getImageData(0, 0, 280, 280);
    let left = 280,
      right = 0,
      top = 280,
      bottom = 0,
      mass = 0,
      x = 0,
      y = 0;
    for (let i = 0; i < 280 * 280; ++i) {
      const ink = rgba[4 * i],
        column = i % 280,
        row = Math.floor(i / 280);
      if (!ink) continue;
      [left, right, top, bottom] = [
        Math.min(left, column),
        Math.max(right, column),
        Math.min(top, row),
        Math.max(bottom, row),
      ];
      mass += ink;
      x += ink * column;
      y += ink * row;
    }
    const scale = 200 / Math.max(right - left + 1, bottom - top + 1),
      canvas = made("canvas", { width: 280, height: 280 }),
      to = context(canvas);
    to.fillRect(0, 0, 280, 280);
    to.drawImage($("drawing"), 140 - (x / mass) * scale, 140 - (y / mass) * scale, 280 * scale, 280 * scale);
    return classify(imageOf(canvas));
  },
};

const MOST = 1024; // pixels a side of a picture that is looked at: the network sees far fewer
async function showFile(file) {
  trouble("");
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return trouble(
      `${file.name} is not a picture that this browser can read (its type is ${file.type || "unknown"}). PNG, JPEG, WebP and GIF are.`,
    );
  }
  const scale = Math.min(1, MOST / Math.max(bitmap.width, bitmap.height)),
    canvas = $("picture");
  Object.assign(canvas, {
    width: Math.max(1, Math.round(bitmap.width * scale)),
    height: Math.max(1, Math.round(bitmap.height * scale)),
    hidden: false,
  });
  context(canvas).drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return classify(
    imageOf(canvas),
    () =>
      `${file.name}, ${bitmap.width}×${bitmap.height} pixels${channels === 2 ? ", the same for both eyes" : ""}. It did not leave this machine.`,
  );
}

const camera = {
  async start() {
    trouble("");
    try {
      if (!navigator.mediaDevices) throw new Error("it offers none to this page");
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640 } });
    } catch (error) {
      return trouble(
        `The camera cannot be used: ${error.name === "NotAllowedError" ? "it was refused. Allow it in the browser’s settings for this page" : ["NotFoundError", "OverconstrainedError"].includes(error.name) ? "there is none" : error.message}.`,
      );
    }
    const video = $("video"),
      canvas = made("canvas");
    Object.assign(video, { srcObject: this.stream, hidden: false });
    await video.play();
    $("camera").textContent = "Stop the camera";
    while (this.stream) {
      Object.assign(canvas, { width: video.videoWidth, height: video.videoHeight });
      context(canvas).drawImage(video, 0, 0);
      await classify(imageOf(canvas), () => "The camera’s picture. It does not leave this machine.");
      await new Promise(requestAnimationFrame);
    }
    return undefined;
  },
  stop() {
    if (this.stream) this.stream.getTracks().forEach((track) => track.stop());
    this.stream = null;
    $("video").hidden = true;
    $("camera").textContent = "Start the camera";
  },
};

const examples = {
  start() {
    data.examples.forEach((example, i) => {
      const canvas = made("canvas"),
        name = classes[example.label];
      paint(canvas, this.picture(example));
      const button = made("button", { onclick: () => this.show(example) }, canvas, name);
      button.setAttribute("aria-label", `Test image ${i + 1}: ${name}`);
      $("examples").append(button);
    });
  },
  picture({ image }) {
    return {
      pixels: Uint8Array.from(atob(image), (letter) => letter.charCodeAt(0)),
      width: imageWidth,
      height: imageHeight,
      channels,
    };
  },
  show(example) {
    const { label, logit: reference } = example;
    return classify(this.picture(example), (answer) => {
      const off = Math.max(...reference.map((exact, i) => Math.abs(exact - answer.logit[i])));
      return `${verdict(answer, label)} Logits differ from the trained network’s, in float64, by at most ${off.toExponential(1)}.`;
    });
  },
};

// ---- tabs -----------------------------------------------------------------------------------------------------------

const tabs = [
  ["toy", "Turn a toy", data.scene],
  ["draw", "Draw", channels === 1],
  ["file", "A picture", true],
  ["camera", "Camera", true],
  ["examples", "Test images", data.examples.length],
]
  .filter(([, , offered]) => offered)
  .map(([name, words]) => {
    const tab = made("button", { id: `tab-${name}`, textContent: words, onclick: () => choose(name) });
    for (const [key, value] of Object.entries({ role: "tab", "aria-controls": `panel-${name}` }))
      tab.setAttribute(key, value);
    $(`panel-${name}`).setAttribute("aria-labelledby", tab.id);
    document.querySelector(".tabs").append(tab);
    return { name, tab };
  });

function choose(wanted) {
  trouble("");
  toy.stop();
  camera.stop();
  for (const { name, tab } of tabs) {
    tab.setAttribute("aria-selected", name === wanted);
    tab.tabIndex = name === wanted ? 0 : -1;
    $(`panel-${name}`).hidden = name !== wanted;
  }
}

document.querySelector(".tabs").onkeydown = (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const now = tabs.findIndex(({ tab }) => tab === document.activeElement),
    to = tabs[(now + step + tabs.length) % tabs.length];
  choose(to.name);
  to.tab.focus();
};
$("file").onchange = ({ target }) => {
  if (target.files.length) showFile(target.files[0]);
};
document.ondragover = (event) => {
  event.preventDefault();
  $("drop").classList.add("over");
};
document.ondragleave = () => $("drop").classList.remove("over");
document.ondrop = (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  if (!event.dataTransfer.files.length) return trouble("What was dropped is not a file: drop a picture.");
  choose("file");
  return showFile(event.dataTransfer.files[0]);
};
$("camera").onclick = () => (camera.stream ? camera.stop() : camera.start());

async function start() {
  examples.start();
  drawing.start();
  if (data.scene) toy.start();
  choose(tabs[0].name);
  try {
    const opened = await Promise.all(networks.map((network) => network.open()));
    $("facts").textContent =
      `libqcn: ${opened[0].backend}. ${manifests.map(({ name, source, known }) => `${name}: trained on ${source.data}, weights ${source.sha256.slice(0, 12)}…${known ? "" : ", cannot say “unknown”"}`).join("; ")}`;
  } catch (error) {
    $("answer").textContent = "The network could not be loaded";
    return trouble(error.message);
  }
  $("answer").textContent = "Show it something";
  // So that an answer is seen at once.
  if (data.scene) return toy.show();
  return data.examples.length ? examples.show(data.examples[0]) : undefined;
}

start();
