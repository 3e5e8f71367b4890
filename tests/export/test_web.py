"""A page that runs a network: in Node, and in a real browser, it answers as the reference and as libqcn do."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of, put_manifest, with_directions
from command import Command
from PIL import Image
from runners import create, model_at
from verify import chromium, firefox, webkit
from verify.browser import Window

import qcn as product
from qcn.data.viewpoints import raytrace
from qcn.data.viewpoints.light import LIGHTS
from qcn.data.viewpoints.toys import CATEGORIES, toy
from qcn.direction import Direction
from qcn.errors import UsageError
from qcn.export import pipeline
from qcn.export.backends import web
from qcn.export.backends.candidates import capsule_layers
from qcn.export.backends.runner import Options
from qcn.export.backends.web import page
from qcn.export.backends.web.runner import WebRunner
from qcn.export.bundle import MANIFEST, Bundle
from qcn.export.request import ExportRequest

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no Node here: apt install nodejs")
BROWSERS = {
    "chromium": (chromium, "apt install chromium"),
    "firefox": (firefox, "apt install firefox-esr"),
    "webkit": (webkit, "apt install webkit2gtk-driver xvfb"),
}
LARGEST = 3_000_000  # bytes of a page
ANSWERS, DIRECTIONS = (Path(__file__).parents[1] / name for name in ("answers.json", "directions.json"))


@pytest.fixture
def with_page(wasm: None, bundle: Bundle) -> Bundle:
    """A bundle of qcn-tiny with its page, and its own network beside itself in it."""
    beside = shutil.copytree(bundle.folder, bundle.folder.parent / "beside")
    request = ExportRequest(formats=("web",), beside=beside)
    exported, _ = pipeline.export(bundle.folder, None, request, bundle.folder)
    assert (exported.folder / "page.html").stat().st_size < LARGEST
    return exported


@needs_node
def test_threads_share_a_page_in_node(with_page: Bundle) -> None:
    model, rng = product.load(with_page.folder, "web"), np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (28, 28), dtype=np.uint8) for _ in range(8)]
    expected, wrong = [model.predict(picture).logit for picture in pictures], list[int]()

    def ask(number: int) -> None:
        for _ in range(10):
            if not np.array_equal(model.predict(pictures[number]).logit, expected[number]):
                wrong.append(number)

    threads = [Thread(target=ask, args=(number,), daemon=True) for number in range(len(pictures))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@needs_node
def test_after_ctrl_c_a_page_does_not_answer_the_question_before(
    with_page: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = product.load(with_page.folder, "web")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(WebRunner, "_read", stopped)
        with pytest.raises(KeyboardInterrupt):
            model.predict(np.zeros((28, 28), np.uint8))
    with pytest.raises(UsageError, match="is not open"):
        model.predict(np.full((28, 28), 255, np.uint8))


@needs_node
def test_a_page_answers_in_node_as_the_reference_does(with_page: Bundle, qcn: Command) -> None:
    path = with_page.folder / "page.html"
    code, said = qcn("verify-parity", with_page.folder, "--backends", "web,native")
    assert code == 0 and "passed    web: page.html (fp32)" in said
    code, said = qcn("benchmark", with_page.folder, "--backends", "web", "--duration", "0.1")
    assert code == 0 and "page.html" in said
    code, said = qcn("doctor", with_page.folder)
    assert code == 0 and "in a browser, and by Node" in said

    golden, layers = with_page.golden(), capsule_layers(with_page)
    answers = []
    for variant, kernels in (("simd", "simd128"), ("plain", "plain"), ("threads", "simd128")):
        with WebRunner(model_at(path), Options(layers=layers), variant) as runner:
            assert f"native, {kernels}, 1 thread" in runner.name
            answers.append(runner.infer(golden.input))
            with pytest.raises(UsageError, match="images are 2×3×28×28, the network takes 1×"):
                runner.infer(np.zeros((2, 3, 28, 28), np.float32))
    with create("native", with_page.folder / "weights.safetensors", layers=layers) as native:
        expected = native.infer(golden.input)
    for found in answers:
        assert found.keys() == expected.keys()
        for name, numbers in expected.items():
            np.testing.assert_allclose(found[name], numbers, rtol=1e-4, atol=1e-5, err_msg=name)

    picture = golden.image[0].transpose(1, 2, 0)
    assert (
        product.load(with_page.folder, "web").predict(picture).label
        == product.load(with_page.folder).predict(picture).label
    )
    path.write_text("<html>")
    with pytest.raises(UsageError, match="not a page that `qcn export --format web` wrote"):
        create("web", path).open()


def test_what_a_page_needs_is_named(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qcn: Command
) -> None:
    monkeypatch.setattr(page, "CLONE", tmp_path)
    code, said = qcn("export", bundle.folder, "--format", "web")
    assert code == 3 and "apt install emscripten && make build/web/qcn-simd.wasm" in " ".join(said.split())
    assert "`make wheels` then puts it into the wheels" in " ".join(said.split())

    for variant in page.VARIANTS:
        (tmp_path / "build/web").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"build/web/qcn-{variant}.wasm").write_bytes(b"\0asm")
    code, said = qcn("export", bundle.folder, "--format", "web")
    assert code == 0 and "open" in said and "page.html in a browser" in " ".join(said.split())
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said = qcn("verify-parity", bundle.folder, "--backends", "web")
    assert code == 3 and "apt install nodejs" in " ".join(said.split())


def test_a_network_of_other_classes_cannot_stand_beside(bundle: Bundle, tmp_path: Path) -> None:
    other = shutil.copytree(bundle.folder, tmp_path / "other")
    put_manifest(other, (other / MANIFEST).read_text().replace('"7"', '"seven"'))
    with pytest.raises(UsageError, match=r"other cannot be shown beside .*bundle"):
        page.write_page(bundle, Bundle.open(other), tmp_path / "page.html")


def in_node(file: str, cases: Path, script: str) -> Any:
    """What a script behind one of the page's prints in JSON, of the `cases` in a file."""
    source = (Path(web.__file__).parent / file).read_text(encoding="utf-8")
    source += 'const { cases } = JSON.parse(require("fs").readFileSync(0));\n' + script
    done = subprocess.run([str(NODE), "-e", source], input=cases.read_bytes(), capture_output=True, check=True)
    return json.loads(done.stdout)


@needs_node
def test_the_page_answers_as_the_shared_cases_say() -> None:
    """Those that Python and libqcn are held to; and what is no answer is refused."""
    cases = json.loads(ANSWERS.read_text(encoding="utf-8"))["cases"]
    said = in_node(
        "answers.js",
        ANSWERS,
        """
        const answers = cases.map(({ logit, temperature, known }) =>
          answerOf(Float32Array.from(logit), { name: "it", confidence: { temperature }, known }));
        const words = answers.map((answer, i) => wordsOf(answer, cases[i].logit.map((_, k) => `class${k}`)));
        let error;
        for (const odd of [NaN, Infinity, -Infinity])
          try { answerOf([0, odd], { name: "it", confidence: null, known: null }); error = "none"; }
          catch (thrown) { error = error || thrown.message; }
        console.log(JSON.stringify({ answers, words, error }));""",
    )
    assert said["error"] == "it returned NaN or an infinite number, not an answer"
    for case, answer, words in zip(cases, said["answers"], said["words"], strict=True):
        assert answer["order"] == case["order"] and answer["best"] == case["order"][0], case["name"]
        assert answer["known"] is case["is_known"], case["name"]
        np.testing.assert_allclose(answer["probability"], case["probability"], rtol=0, atol=1e-12, err_msg=case["name"])
        assert words.startswith(f"class{case['order'][0]}, " if case["is_known"] else "unknown (most like class")


@needs_node
def test_the_page_says_directions_as_the_shared_cases_say() -> None:
    """Those that Python and libqcn are held to."""
    cases = json.loads(DIRECTIONS.read_text(encoding="utf-8"))["cases"]
    said = in_node(
        "answers.js",
        DIRECTIONS,
        """
        const told = cases.map(({ direction, pose, label }) => {
          const logit = direction.symmetry.map((_, k) => (k === label ? 1 : -1)),
            poses = Float32Array.from(direction.symmetry.flatMap((_, k) => (k === label ? pose : [7, 7, 7]))),
            manifest = { name: "it", confidence: null, known: null, direction };
          const never = { ...manifest, known: { score: "logit", threshold: 2 } };
          if (answerOf(logit, manifest).direction || answerOf(logit, never, poses).direction) throw new Error("one");
          return answerOf(logit, manifest, poses).direction;
        });
        const words = told.map((one) => one && directionWords(one));
        console.log(JSON.stringify({ told, words }));""",
    )
    for case, told, words in zip(cases, said["told"], said["words"], strict=True):
        expected = case["expected"]
        assert (told is None) == (expected is None), case["name"]
        if told is not None:
            assert told.pop("vector") == pytest.approx(expected.pop("vector"), abs=1e-12), case["name"]
            assert words == Direction(**told, vector=(0, 0, 0)).words(), case["name"]
            for name, value in expected.items():
                assert told[name] == (value and pytest.approx(value, rel=1e-12, abs=1e-12)), f"{case['name']}: {name}"


@needs_node
def test_the_page_renders_toys_as_python_does(tmp_path: Path) -> None:
    """Up to rounding: by 1 of 255, and on at most one pixel in a thousand, at edges, by more."""
    size, azimuths, elevations, lights = 96, (77,), (40,), (0, 3)
    toys = [toy(category, instance=3, seed=0) for category in range(len(CATEGORIES))]
    described = {**page.scene(size, "viewpoints"), "toys": [page.described(one) for one in toys]}
    (tmp_path / "scene.json").write_text(json.dumps(described))
    script = (
        (Path(web.__file__).parent / "toys.js").read_text()
        + f"""
        const scene = JSON.parse(require("fs").readFileSync("scene.json"));
        for (const toy of scene.toys) for (const e of {list(elevations)}) for (const a of {list(azimuths)})
          for (const l of {list(lights)})
            process.stdout.write(Buffer.from(renderToy(scene, toy, a, e, scene.lights[l]).pixels));"""
    )
    shown = subprocess.run([str(NODE), "-e", script], cwd=tmp_path, capture_output=True, check=True).stdout
    found = np.frombuffer(shown, np.uint8).reshape(len(toys), 1, 1, 2, size, size, 2).astype(int)
    lamps, angles = tuple(LIGHTS[light] for light in lights), (np.array(elevations), np.array(azimuths))
    for one, pictures in zip(toys, found, strict=True):
        expected = raytrace.render(one, *angles, lamps, size=size, device=torch.device("cpu"))
        difference = abs(pictures - expected.transpose(0, 1, 2, 4, 5, 3))
        assert (difference > 1).mean() < 1e-3 and difference.mean() < 0.05


@pytest.fixture(params=BROWSERS)
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Window]:
    module, command = BROWSERS[request.param]
    if (program := module.find()) is None:
        pytest.skip(f"no {request.param} here: {command}")
    with module.Browser(program, tmp_path / "profile") as opened:
        yield opened


@pytest.mark.slow
def test_a_page_answers_in_a_browser_as_libqcn_does(with_page: Bundle, browser: Window, tmp_path: Path) -> None:
    path, golden = with_page.folder / "page.html", with_page.golden()
    rows = [int(np.argmax(golden.label == label)) for label in np.unique(golden.label[golden.label >= 0])]
    shown = [golden.image[row].transpose(1, 2, 0) for row in rows[: page.EXAMPLES]]
    expected = [answer.logit for answer in product.load(with_page.folder, "native").predict(shown)]
    for width, dark in ((1280, False), (390, True)):
        browser.show(path, width, dark)
        browser.wait_for("window.qcn && window.qcn.answers > 0")
        browser.check_width(width)
        assert browser.ask("matchMedia('(prefers-color-scheme: dark)').matches") == dark

    def answer(act: Callable[[], object], expected: Any = ()) -> list[float]:
        """What the network answers to the next picture that it is shown; where it is known, answers to what was shown
        before may still come first.
        """
        before = browser.ask("window.qcn.answers")
        act()
        near = f"{list(map(float, expected))}.every((x, i) => Math.abs(window.qcn.logit[i] - x) <= 1e-5)"
        browser.wait_for(f"window.qcn.answers > {before} && {near}")
        logit: list[float] = browser.ask("window.qcn.logit")
        return logit

    for i, logit in enumerate(expected):
        answer(partial(browser.ask, f"document.querySelectorAll('#examples button')[{i}].click()"), logit)
    assert browser.ask("document.querySelectorAll('#networks section').length") == 2

    # By keyboard: to the drawing, and a line in it, whose pen is seen. By mouse.
    draw = "document.getElementById('drawing').dispatchEvent(new KeyboardEvent('keydown', { key }))"
    by_keys = answer(lambda: browser.ask(f"[' ', 'ArrowUp', 'ArrowUp', 'ArrowUp'].forEach((key) => {draw})"))
    pen = "[pen.hidden, pen.className, parseFloat(pen.style.top).toFixed(2)]"
    assert browser.ask(pen) == [False, "down", "41.43"]
    browser.drag("drawing", 60, 20)
    browser.wait_for(f"String(window.qcn.logit) !== String({by_keys})")

    # A file that a person chooses, and a camera (the browser's own pictures).
    browser.ask("choose('file')")
    Image.fromarray(shown[-1][..., 0]).save(tmp_path / "shown.png")
    answer(lambda: browser.choose_file("file", tmp_path / "shown.png"), expected[-1])
    answer(lambda: browser.ask("(choose('camera'), camera.start(), true)"))
    browser.wait_for("document.getElementById('under').textContent.includes('camera')")
    browser.ask("camera.stop()")
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))] == []

    # What goes wrong is said, and nothing breaks.
    trouble = "!document.getElementById('trouble').hidden && document.getElementById('trouble').textContent"
    browser.ask("(showFile(new File(['no picture'], 'notes.txt', { type: 'text/plain' })), true)")
    browser.wait_for(f"({trouble} || '').includes('notes.txt is not a picture')")
    for error, said in (("NotAllowedError", "it was refused"), ("OverconstrainedError", "there is none")):
        thrown = f"async () => {{ throw new DOMException('', '{error}') }}"
        browser.ask(f"(navigator.mediaDevices.getUserMedia = {thrown}, camera.start(), true)")
        browser.wait_for(f"({trouble} || '').includes('{said}')")
    (tmp_path / "plain.html").write_text(path.read_text().replace("WebAssembly.validate(SIMD)", "false"))
    browser.show(tmp_path / "plain.html", 390)  # a browser without SIMD
    browser.wait_for("window.qcn && document.getElementById('facts').textContent.includes('plain')")


@pytest.mark.slow
def test_a_compass_turns_in_a_browser(wasm: None, browser: Window, tmp_path: Path) -> None:
    torch.manual_seed(0)
    toys = bundle_of(tmp_path / "toys", product.create("qcn-tiny", in_channels=1, classes=3), 32, 32)
    folder = with_directions(toys, spreads=(100.0,)).folder
    pipeline.export(folder, None, ExportRequest(formats=("web",)), folder)
    shown = [image.transpose(1, 2, 0) for image in toys.golden().image[:2]]
    first, second = (answer.direction for answer in product.load(folder, "native").predict(shown))
    assert first and second and abs(first.azimuth - second.azimuth) > 1
    browser.show(folder / "page.html", 390)
    turns = []
    for place, expected in enumerate((first, second)):
        browser.wait_for("window.qcn && window.qcn.answers > 0")
        browser.ask(f"document.querySelectorAll('#examples button')[{place}].click()")
        browser.wait_for(f"document.getElementById('seen').textContent === 'Seen from {expected.words()}'")
        turns.append(browser.ask("document.getElementById('needle').transform.baseVal[0].angle"))
    assert turns == pytest.approx([-first.azimuth, -second.azimuth], abs=0.01)
    assert not browser.ask("document.getElementById('compass').hidden")
    browser.check_width(390)
    browser.ask("(showDirection(null), true)")
    assert browser.ask("document.getElementById('compass').hidden") and browser.complaints == []


@pytest.mark.slow
def test_a_toy_turns_in_a_browser(wasm: None, browser: Window, tmp_path: Path) -> None:
    network = product.create("qcn-tiny", in_channels=2, classes=5)
    folder = bundle_of(tmp_path / "toys", network, 32, 32).folder
    put_manifest(folder, (folder / MANIFEST).read_text().replace('"noise"', '"viewpoints-demo"'))
    pipeline.export(folder, None, ExportRequest(formats=("web",)), folder)
    angles = "document.getElementById('angles').textContent"
    browser.show(folder / "page.html", 390)
    browser.wait_for("window.qcn && window.qcn.answers > 0")
    browser.check_width(390)
    assert "Azimuth 30°, elevation 40°: as in training" in browser.ask(angles)
    browser.drag("toy", 60, -30)
    browser.wait_for(f"{angles}.includes('Azimuth 0°, elevation 30°')")
    browser.ask("document.getElementById('toy').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }))")
    browser.wait_for(f"{angles}.includes('Azimuth 5°, elevation 30°') && window.qcn.answers > 2")
    browser.ask("document.getElementById('spin').click()")
    browser.wait_for("toy.azimuth > 30 && window.qcn.answers > 6")
    browser.ask("(toy.stop(), toy.turn(180, 0), true)")
    browser.wait_for(f"{angles}.includes('a new viewpoint')")
    assert browser.complaints == []


class Isolated(SimpleHTTPRequestHandler):
    """Serves a page that may share memory between its workers."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_an_isolated_page_uses_threads(wasm: None, bundle: Bundle, browser: Window) -> None:
    pipeline.export(bundle.folder, None, ExportRequest(formats=("web",)), bundle.folder)
    handler = partial(Isolated, directory=str(bundle.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        where, said = f"http://127.0.0.1:{server.server_port}", "document.getElementById('facts').textContent"
        browser.show(f"{where}/page.html", 390)
        browser.wait_for("window.crossOriginIsolated && window.qcn")
        threads = browser.ask("Math.min(navigator.hardwareConcurrency, 8)")
        assert threads == 1 or f"simd128, {threads} threads" in browser.ask(said)
        golden = bundle.golden()
        row = int(np.argmax(golden.label == golden.label[golden.label >= 0].min()))
        np.testing.assert_allclose(browser.ask("window.qcn.logit"), golden.reference.logit[row], atol=1e-5)
        library, text = '<script type="text/plain" id="library">', (bundle.folder / "page.html").read_text()
        assert library in text  # WebKit may call a page isolated, and have nothing to share memory by
        (bundle.folder / "alone.html").write_text(
            text.replace(library, library + "delete globalThis.SharedArrayBuffer;")
        )
        browser.show(f"{where}/alone.html", 390)
        browser.wait_for("window.crossOriginIsolated && window.qcn")
        assert "simd128, 1 thread." in browser.ask(said)
        server.shutdown()
