// Runs the network of a page in Node, for `qcn.export.backends.web.runner`: requests on standard input, answers on standard
// output, in frames (export/backends/frames.py). It takes data from the page and runs none of its scripts.
"use strict";

const fs = require("fs"),
  path = require("path"),
  vm = require("vm");
vm.runInThisContext(fs.readFileSync(path.join(__dirname, "libqcn.js"), "utf8"), "libqcn.js");

const DATA = /<script type="application\/json" id="data">(.*?)<\/script>/s;
let network;

async function open({ variant }, page) {
  const found = DATA.exec(page.toString("utf8"));
  if (!found) throw new Error("it is not a page that `qcn export --format web` wrote: it has no network in it");
  const data = JSON.parse(found[1]),
    library = await openLibrary(data.wasm, variant);
  const { manifest, sums, weights } = data.networks[0];
  network = library.network(manifest, sums, await unpack(weights));
  return { texts: { backend: network.backend }, arrays: [] };
}

function infer({ layers }, body, [, , shape]) {
  if (shape.slice(1).join() !== network.input.join())
    throw new Error(`images are ${shape.join("×")}, the network takes ${network.input.join("×")}`);
  const count = shape[0],
    inputs = new Float32Array(body.buffer.slice(body.byteOffset, body.byteOffset + body.length));
  const { logit, pose, layers: shown } = network.infer(inputs, count, layers);
  const classes = logit.length / count,
    arrays = [["logit", [count, classes], logit]];
  if (pose) arrays.push(["pose", [count, classes, 3], pose]);
  shown.forEach(({ images, parents, height, width, iterations, ...layer }, i) => {
    arrays.push([`${i}.pose`, [images, parents, 3, height, width], layer.pose]);
    for (const name of ["activation", "logit"].filter((kind) => layer[kind]))
      arrays.push([`${i}.${name}`, [images, parents, height, width], layer[name]]);
    arrays.push([`${i}.statistics`, [iterations, 7, parents, images, height * width], layer.statistics]);
  });
  return { texts: { layers: shown.map(({ name }) => name) }, arrays };
}

function send({ texts, arrays }) {
  const head = Buffer.from(
    JSON.stringify({ ...texts, arrays: arrays.map(([name, shape]) => [name, "float32", shape]) }),
  );
  const bodies = arrays.map(([, , numbers]) => Buffer.from(numbers.buffer)),
    lengths = Buffer.alloc(16);
  lengths.writeBigUInt64LE(BigInt(head.length), 0);
  lengths.writeBigUInt64LE(BigInt(bodies.reduce((sum, body) => sum + body.length, 0)), 8);
  fs.writeFileSync(1, Buffer.concat([lengths, head, ...bodies]));
}

// The next bytes of standard input; the process ends with it.
function read(count) {
  const bytes = Buffer.alloc(count);
  for (let at = 0, more; at < count; at += more) {
    more = fs.readSync(0, bytes, at, count - at);
    if (!more) process.exit();
  }
  return bytes;
}

async function serve() {
  for (;;) {
    const lengths = read(16),
      texts = JSON.parse(read(Number(lengths.readBigUInt64LE(0)))),
      body = read(Number(lengths.readBigUInt64LE(8)));
    try {
      send(texts.do === "open" ? await open(texts, body) : infer(texts, body, texts.arrays[0]));
    } catch (error) {
      send({ texts: { error: error.message || String(error) }, arrays: [] });
    }
  }
}

serve();
