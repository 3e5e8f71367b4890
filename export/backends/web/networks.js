// The networks of a page and what they answer. They run in workers, one each, so that the page stays quick.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const manifests = data.networks.map((network) => JSON.parse(network.manifest));
const [channels, imageHeight, imageWidth] = manifests[0].image;
const classes = manifests[0].classes;
const $ = (id) => document.getElementById(id);
const made = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// ---- networks -------------------------------------------------------------------------------------------------------

const WORKER = `
let network, library;
onmessage = async ({ data: { id, open, image } }) => {
  try {
    if (open) {
      library = await openLibrary(open.wasm, null, open.threads);
      network = library.network(open.manifest, open.sums, await unpack(open.weights));
      postMessage({ id, answer: { backend: network.backend } });
    } else {
      postMessage({ id, answer: network.infer(network.preprocess(image), 1, true) });
    }
  } catch (error) { postMessage({ id, error: String(error.message || error) }); }
};`;

class Network {
  constructor(index) {
    Object.assign(this, { manifest: manifests[index], data: data.networks[index], waiting: new Map(), count: 0 });
    const source = new Blob([$("library").textContent, WORKER], { type: "text/javascript" });
    this.worker = new Worker(URL.createObjectURL(source));
    this.worker.onmessage = ({ data: { id, answer, error } }) => {
      const { resolve, reject } = this.waiting.get(id);
      this.waiting.delete(id);
      if (error) reject(new Error(error));
      else resolve(answer);
    };
    this.worker.onerror = (event) => {
      for (const { reject } of this.waiting.values())
        reject(new Error(`the worker ended: ${event.message || "it could not start"}`));
    };
  }

  ask(message) {
    return new Promise((resolve, reject) => {
      const id = ++this.count;
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, ...message });
    });
  }

  // The networks share the processor's cores, as far as the page may use several.
  open() {
    const threads = Math.floor((navigator.hardwareConcurrency || 1) / manifests.length);
    return this.ask({ open: { wasm: data.wasm, threads: Math.min(threads, 8), ...this.data } });
  }
  async classify(image) {
    const said = await this.ask({ image });
    return { ...said, ...answerOf(said.logit, this.manifest, said.pose) };
  }
}

// ---- what they answer -----------------------------------------------------------------------------------------------

const PROBABILITIES = "Probability of each class";

class Card {
  constructor(network) {
    this.network = network;
    this.time = made("span", { textContent: "loading" });
    this.heading = made("h3", { textContent: PROBABILITIES });
    this.rows = classes.map((name) => {
      const bar = made("i"),
        value = made("em", { textContent: "–" });
      return { row: made("div", {}, made("b", { textContent: name }), bar, value), bar, value };
    });
    const element = made(
      "section",
      {},
      made("div", { className: "head" }, made("h2", { textContent: network.manifest.name }), this.time),
      this.heading,
      made("div", { className: "bars" }, ...this.rows.map(({ row }) => row)),
    );
    this.trail = [];
    if (network.manifest.outputs.length > 1) {
      this.globe = made("figure");
      this.layers = made("div", { className: "layers" });
      element.append(
        made("h3", { textContent: "The pose of the answer, and where capsules are active" }),
        made("div", { className: "inside" }, this.globe, this.layers),
      );
    }
    $("networks").append(element);
  }

  show({ best, probability, known, logit, pose, layers, ms }) {
    this.heading.textContent = known ? PROBABILITIES : "Unknown: like nothing that it was trained on";
    this.rows.forEach(({ row, bar, value }, i) => {
      row.className = i === best ? "best" : "";
      bar.style.setProperty("--part", `${100 * probability[i]}%`);
      value.textContent = percent(probability[i]);
      row.title = `${classes[i]}: logit ${logit[i].toFixed(4)}`;
    });
    this.time.textContent = `${ms.toFixed(1)} ms per image`;
    if (!this.globe) return;
    this.showPose(classes[best], Array.from(pose.subarray(3 * best, 3 * best + 3)));
    this.layers.replaceChildren(...layers.slice(0, -1).map((layer) => this.map(layer)));
  }

  // The pose of the winning class, as an arrow in a ball: x to the right, y up, z towards the viewer.
  showPose(name, [x, y, z]) {
    const long = Math.hypot(x, y, z) || 1,
      at = [(60 * x) / long, (-60 * y) / long];
    this.trail = this.named === name ? [...this.trail.slice(-60), at] : [at];
    this.named = name;
    const along = (part, more, less) => `${Math.abs(part).toFixed(2)} ${part < 0 ? less : more}`;
    const words = `The pose of ${name}: ${along(x, "right", "left")}, ${along(y, "up", "down")}, ${along(z, "towards you", "away")}`;
    this.globe.innerHTML = `<svg viewBox="-70 -70 140 140" role="img"><circle class="ball" r="62"/><ellipse class="ring" rx="62" ry="18"/><ellipse class="ring" rx="18" ry="62"/>
      <polyline class="trail" points="${this.trail.map((point) => point.map((part) => part.toFixed(1)).join()).join(" ")}"/>
      <g class="${z < 0 ? "behind" : ""}"><line class="arrow" x2="${at[0]}" y2="${at[1]}"/><circle class="tip" cx="${at[0]}" cy="${at[1]}" r="${5 + (2 * z) / long}"/></g></svg><figcaption></figcaption>`;
    this.globe.querySelector("svg").setAttribute("aria-label", words);
    this.globe.querySelector("figcaption").textContent = words;
  }

  // How active a layer's capsules are at each place, on the average: from the least (dark) to the most (bright).
  map({ name, parents, height, width, activation }) {
    const canvas = made("canvas", { width, height }),
      context = canvas.getContext("2d"),
      picture = context.createImageData(width, height);
    const means = Array.from({ length: height * width }, (_, i) =>
      activation.reduce((sum, a, k) => sum + (k % (height * width) === i ? a / parents : 0), 0),
    );
    const least = Math.min(...means),
      most = Math.max(...means),
      flat = most - least < 0.01; // hardly any difference must not look like a pattern
    means.forEach((mean, i) => {
      const part = flat ? mean : (mean - least) / (most - least);
      picture.data.set([255 * Math.min(1, 1.6 * part), 255 * part ** 1.5, 255 * part ** 4, 255], 4 * i);
    });
    context.putImageData(picture, 0, 0);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${name}: mean activations from ${least.toFixed(2)} to ${most.toFixed(2)}`);
    return made(
      "figure",
      {},
      canvas,
      made("figcaption", { textContent: flat ? `${name}: ${least.toFixed(2)}` : `${name}: ${least.toFixed(2)} (dark) to ${most.toFixed(2)}` }),
    );
  }
}

// The object from above, its front at the top: the arrow comes from where the camera is, in a sector of the spread.
function showDirection(direction) {
  $("compass").hidden = !direction;
  if (!direction) return;
  const { azimuth, spread } = direction,
    edge = (Math.PI / 180) * Math.min(spread, 179.9),
    [x, y] = [60 * Math.sin(edge), -60 * Math.cos(edge)].map((part) => part.toFixed(2));
  $("spread").setAttribute("d", `M0 0L${-x} ${y}A60 60 0 ${spread > 90 ? 1 : 0} 1 ${x} ${y}Z`);
  $("needle").setAttribute("transform", `rotate(${-azimuth})`);
  $("seen").textContent = `Seen from ${directionWords(direction)}`;
}

const networks = manifests.map((_, i) => new Network(i)),
  cards = networks.map((network) => new Card(network));
const RUNS = $("under").textContent;
let busy = null,
  next = null;

// Asks every network about the newest image; those that came while they were at work are left out.
async function classify(image, words = () => RUNS) {
  next = { image, words };
  if (busy) return busy;
  busy = (async () => {
    while (next) {
      const now = next;
      next = null;
      try {
        const answers = await Promise.all(networks.map((network) => network.classify(now.image)));
        answers.forEach((answer, i) => cards[i].show(answer));
        const { logit, best, known, direction } = answers[0];
        showDirection(direction);
        $("answer").textContent = `The network sees: ${wordsOf(answers[0], classes)}`;
        window.qcn = { logit: Array.from(logit), best, known, direction, answers: (window.qcn ? window.qcn.answers : 0) + 1 };
        $("under").textContent = now.words(answers[0]);
      } catch (error) {
        trouble(error.message);
      }
    }
    busy = null;
  })();
  return busy;
}

function trouble(words) {
  $("trouble").textContent = words;
  $("trouble").hidden = !words;
}
