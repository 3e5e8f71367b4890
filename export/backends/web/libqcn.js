// libqcn in WebAssembly, for a page's worker and for Node: a network from the bytes of its bundle, and its answers.
//
//     const library = await openLibrary(data.wasm)          // data: the JSON of a page, see `unpack`
//     const network = library.network(manifest, sums, await unpack(weights))
//     const { logit, pose } = network.infer(network.preprocess({ pixels, width, height, channels }), 1)
"use strict";

const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);

// Bytes as a page keeps them: base64 of gzip; those of floats with the first bytes of all fours first, then the second,
// third and fourth, which makes them smaller.
async function unpack({ base64, fours }) {
  if (typeof DecompressionStream === "undefined")
    throw new Error(
      "This browser cannot decompress the network (DecompressionStream). Chrome 95, Firefox 113, Safari 16.4 and newer can.",
    );
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Response(packed).body.pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (!fours) return bytes;
  const quarter = bytes.length >> 2,
    whole = bytes.slice();
  for (let i = 0; i < 4 * quarter; ++i) whole[i] = bytes[(i & 3) * quarter + (i >> 2)];
  return whole;
}

// What libqcn imports: a clock, and of Emscripten's threads the little that is called.
function imports(module, memory, exportsOf, layer) {
  const view = () => new DataView((memory || exportsOf().memory).buffer);
  const nanoseconds = () => BigInt(Math.round(performance.now() * 1e6));
  const env = {
    memory,
    emscripten_notify_memory_growth: () => {},
    emscripten_get_now: () => performance.now(),
    emscripten_memcpy_big: (to, from, size) => new Uint8Array(memory.buffer).copyWithin(to, from, from + size),
    emscripten_resize_heap: () => 0,
    emscripten_check_blocking_allowed: () => {},
    clock_gettime: (clock, to) => {
      view().setBigInt64(to, nanoseconds() / 1000000000n, true);
      view().setInt32(to + 8, Number(nanoseconds() % 1000000000n), true);
      return 0;
    },
    __emscripten_init_main_thread_js: (thread) => exportsOf()._emscripten_thread_init(thread, 1, 1, 1),
  };
  const ended = (status) => {
    throw new Error(`libqcn ended with ${status}`);
  };
  for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
    if (from === "env" && kind === "function") env[name] = env[name] || (() => ended(name));
  }
  const clock_time_get = (clock, precision, to) => (view().setBigUint64(to, nanoseconds(), true), 0);
  return { page: { qcn_layer: layer }, env, wasi_snapshot_preview1: { clock_time_get, proc_exit: ended } };
}

const SHARED_PAGES = 1024; // of 64 KiB, as deploy/web/CMakeLists.txt links them
const HELPER = `onmessage = ({ data: { module, memory, top } }) => {
  const { exports } = new WebAssembly.Instance(module, (${imports})(module, memory, () => exports, () => {}));
  exports.stackRestore(top);
  exports.qcn_web_help();
};`;

// Has workers come in until there are so many threads, each with a stack of its own.
async function startHelpers(module, memory, exports, threads) {
  const source = URL.createObjectURL(new Blob([HELPER], { type: "text/javascript" }));
  const stack = 1 << 20;
  for (let count = exports.qcn_web_threads(); count < threads; ++count) {
    const top = (exports.malloc(stack) + stack) & ~15;
    new Worker(source).postMessage({ module, memory, top });
    while (exports.qcn_web_threads() === count) await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

// The build for this browser: with threads where the page may share memory (it is "cross-origin isolated"; WebKit can say
// so and still have no SharedArrayBuffer), else with SIMD, else plain. `variant` asks for one by name.
async function openLibrary(wasm, variant, threads = 1) {
  if (typeof WebAssembly === "undefined") throw new Error("This browser has no WebAssembly, which the network needs.");
  const shares = threads > 1 && globalThis.crossOriginIsolated === true && typeof SharedArrayBuffer === "function";
  const chosen = variant || (!WebAssembly.validate(SIMD) ? "plain" : shares ? "threads" : "simd");
  const seen = [];
  const text = (address) => {
    const bytes = new Uint8Array(memory.buffer, address);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  };
  const floats = (address, count) => new Float32Array(memory.buffer, address, count).slice();
  const layer = (name, images, parents, height, width, iterations, pose, activation, logit, statistics) => {
    const places = images * parents * height * width;
    seen.push({
      name: text(name),
      images,
      parents,
      height,
      width,
      iterations,
      pose: floats(pose, 3 * places),
      activation: activation ? floats(activation, places) : null, // of the layer of the classes, logits instead
      logit: logit ? floats(logit, places) : null,
      statistics: floats(statistics, 7 * iterations * places),
    });
  };
  const module = await WebAssembly.compile(await unpack(wasm[chosen]));
  const pages = { initial: SHARED_PAGES, maximum: SHARED_PAGES, shared: true };
  const shared = chosen === "threads" ? new WebAssembly.Memory(pages) : null;
  const { exports } = await WebAssembly.instantiate(
    module,
    imports(module, shared, () => exports, layer),
  );
  const memory = shared || exports.memory;
  if (shared) {
    exports.emscripten_tls_init();
    exports.__wasm_call_ctors();
    await startHelpers(module, memory, exports, threads);
  } else exports._initialize();

  // Runs `use` with copies of `arrays` in the library's memory, and frees them.
  const lent = (arrays, use) => {
    const addresses = arrays.map((array) => exports.malloc(Math.max(1, array.byteLength)));
    if (addresses.includes(0)) throw new Error("there is not enough memory");
    arrays.forEach((array, i) =>
      new Uint8Array(memory.buffer).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), addresses[i]),
    );
    try {
      return use(...addresses);
    } finally {
      addresses.forEach((address) => exports.free(address));
    }
  };
  const check = (failed) => {
    if (failed) throw new Error(text(exports.qcn_web_error()));
  };
  const encode = (words) => new TextEncoder().encode(words);

  // From the texts of manifest.json and manifest.sha256 and the bytes of weights.safetensors.
  const network = (manifest, sums, weights) => {
    const files = [encode(manifest), encode(sums), weights];
    const handle = lent(files, (...at) => exports.qcn_web_load(...files.flatMap((bytes, i) => [at[i], bytes.length])));
    check(!handle);
    const { input, outputs, classes } = JSON.parse(manifest);
    const sizes = input.shape.reduce((a, b) => a * b),
      poses = outputs.length > 1;
    return {
      input: input.shape,
      backend: text(exports.qcn_web_backend(handle)),
      // Packed bytes of 1 to 4 channels, of any size, as the network takes them.
      preprocess({ pixels, width, height, channels }) {
        return lent([pixels, new Float32Array(sizes)], (from, to) => {
          check(exports.qcn_web_preprocess(handle, from, width, height, channels, to));
          return floats(to, sizes);
        });
      },
      // inputs [count, …]; logit [count, classes], pose [count, classes, 3] or none; `layers` if they are to be shown.
      infer(inputs, count, layers = false) {
        seen.length = 0;
        const answers = [
          new Float32Array(count * classes.length),
          new Float32Array(poses ? 3 * count * classes.length : 0),
        ];
        return lent([inputs, ...answers], (from, logit, pose) => {
          const start = performance.now();
          check(exports.qcn_web_infer(handle, from, count, layers ? 1 : 0, logit, poses ? pose : 0));
          const ms = performance.now() - start;
          return {
            logit: floats(logit, answers[0].length),
            pose: poses ? floats(pose, answers[1].length) : null,
            layers: seen.splice(0),
            ms,
          };
        });
      },
      free() {
        exports.qcn_web_free(handle);
      },
    };
  };
  return { network, variant: chosen, version: text(exports.qcn_web_version()) };
}
