"""libqcn in WebAssembly, in Node and in Chromium, beside libqcn itself: one image at a time, one thread.

    qcn export viewpoints-azimuth-pooled-qcn --format web --out runs/export/viewpoints-azimuth-pooled-qcn
    python benchmarks/web.py runs/export/viewpoints-azimuth-pooled-qcn --json benchmarks/results/web-aarch64.json

The goal, at most 1.5 times the native time, is held against libqcn with vectors of WebAssembly's width: its SSE2 or
NEON kernels (QCN_INSTRUCTION_SET). What a program would use here is measured too. All take turns: other work on the
machine slows all, and the least time of all turns is what it can do.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import facts

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from verify import chromium  # noqa: E402

from qcn.export import web  # noqa: E402
from qcn.export.backends.web.runner import find_node  # noqa: E402
from qcn.export.bundle import Bundle  # noqa: E402

BENCH = ROOT / "build" / "programs" / "qcn-bench"
NARROW = "neon" if platform.machine() == "aarch64" else "sse2"  # kernels whose vectors are of 128 bits
LIBRARY = (Path(web.__file__).parent / "libqcn.js").read_text(encoding="utf-8")
OPEN = """
var network;
const opened = (data, variant) => openLibrary(data.wasm, variant).then(async (library) => {
  const { manifest, sums, weights } = data.networks[0];
  network = library.network(manifest, sums, await unpack(weights));
});
const least = (runs) => {
  const size = network.input.reduce((a, b) => a * b);
  const images = Float32Array.from({ length: size }, (_, i) => Math.sin(i));
  return Math.min(...Array.from({ length: runs }, () => network.infer(images, 1).ms));
};
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--runs", type=int, default=25, help="of each turn")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    record: dict[str, Any] = {**facts(), "node": find_node()[1], "turns": arguments.turns, "results": []}
    for bundle in arguments.bundles:
        row = measured(bundle, arguments.turns, arguments.runs)
        print(row, flush=True)
        record["results"].append(row)
    arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def measured(bundle: Path, turns: int, runs: int) -> dict[str, Any]:
    """The least milliseconds of each, and WebAssembly's over those of native kernels with vectors as wide."""
    page = bundle / "page.html"
    data = re.search('id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    browser_program = chromium.find()
    if data is None or browser_program is None:
        raise SystemExit(f"{page} is not a page, or there is no Chromium: apt install chromium")
    times = {"node_plain": [by_node(data[1], "plain", runs)]}
    with tempfile.TemporaryDirectory() as folder, chromium.Browser(browser_program, Path(folder)) as browser:
        browser.show(page, 1280)
        browser.ask(f"{LIBRARY}{OPEN}opened(JSON.parse(document.getElementById('data').textContent), 'simd'); 0")
        while not browser.ask("!!network"):
            pass
        for _ in range(turns):
            times.setdefault("native_128_bits", []).append(by_program(bundle, runs, QCN_INSTRUCTION_SET=NARROW))
            times.setdefault("native", []).append(by_program(bundle, runs))
            times.setdefault("node_simd", []).append(by_node(data[1], "simd", runs))
            times.setdefault("chromium_simd", []).append(float(browser.ask(f"least({runs})")))
    least = {name: min(several) for name, several in times.items()}
    over = {name: least[name] / least["native_128_bits"] for name in ("node_simd", "chromium_simd")}
    return {
        "model": Bundle.open(bundle).manifest.name,
        "page_bytes": page.stat().st_size,
        "least_ms": least,
        "over_native": over,
    }


def by_program(bundle: Path, runs: int, **environment: str) -> float:
    """The least time of the network alone, by qcn-bench, in milliseconds."""
    command = [str(BENCH), str(bundle), "--json", "--infer", "--backend=native"]
    command += ["--threads=1", "--duration=0.01", f"--runs={runs}"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["latency_ms"]["min"])


def by_node(data: str, variant: str, runs: int) -> float:
    """The same in Node, whose compiler first sees three times as many runs."""
    script = f"{LIBRARY}{OPEN}const data = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    script += f"opened(data, '{variant}').then(() => {{ least({3 * runs}); console.log(least({runs})); }});"
    done = subprocess.run([find_node()[0], "-e", script], input=data, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
