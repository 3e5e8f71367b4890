"""`qcn explain`: numbers that are routing's own, a page with every panel, and no name that becomes markup."""

import base64
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import bundle_of
from command import ask
from PIL import Image
from torch import Tensor
from verify import chromium
from verify.chromium import Browser

import qcn as product
from qcn import routing
from qcn.data.fit import fit, read_picture
from qcn.data.preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.direction import ROUND, Directions
from qcn.errors import CheckFailed, UsageError
from qcn.explain import drawing, panels
from qcn.explain.evidence import evidence, loudest
from qcn.explain.fields import Field, fields, over_image
from qcn.explain.numbers import record
from qcn.explain.page import HERE, page
from qcn.explain.picture import Picture, from_file
from qcn.explain.routing import PRIMARY, Capsules, Inside, look
from qcn.explain.source import Source, check_capsules, open_source
from qcn.export.backends.torch.interpreter import Interpreter
from qcn.export.bundle import Bundle
from qcn.export.program.lower import lower
from qcn.export.program.program import Array, Operation, Output, Program, Route
from qcn.limits import MASS_FLOOR
from qcn.networks.confidence import probabilities
from qcn.networks.model import QCN, CapsuleLayer, QCNConfig

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
PANELS = ("image", "classes", "routing", "votes", "poses", "primary", "layers", "care")
IMAGE = np.random.default_rng(3).normal(size=(3, 20, 22)).astype(np.float32)


def network(iterations: int = 2, stride: int = 1, classes: int = 4, mode: Any = "logistic") -> QCN:
    """A small network with two capsule layers before the classes. Its biases are not zero, as after training."""
    torch.manual_seed(0)
    layers = (CapsuleLayer(3, stride, 5), CapsuleLayer(2, 1, 6))
    config = QCNConfig(3, classes, True, (8, 8), (1, 2), (8,), (2,), 7, layers, iterations, mode)
    made = QCN(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "beta" in name:
                parameter.uniform_(-0.5, 0.5)
    return made


def small(**options: Any) -> Program:
    return lower(network(**options), *IMAGE.shape[1:])


@pytest.fixture(scope="module")
def inside() -> Inside:
    return look(small(), IMAGE)


def source_of(program: Program, **about: Any) -> Source:
    classes = tuple(f"class{k}" for k in range(program.classes))
    found: dict[str, Any] = {"name": "some", "classes": classes, "image": program.input.shape}
    return Source(program=program, preprocessing=Preprocessing(standardise="image"), **{**found, **about})


def picture_of(image: Array, **about: Any) -> Picture:
    shown = drawing.seen(image)
    found: dict[str, Any] = {"name": "a.png", "size": image.shape[:0:-1], "given": shown}
    return Picture(input=image, **{**found, **about})


def save(path: Path, pixels: Array) -> Path:
    Image.fromarray(pixels).save(path)
    return path


# The numbers


@pytest.mark.parametrize("options", [{}, {"iterations": 1}, {"iterations": 3, "stride": 2}, {"mode": "unit"}], ids=str)
def test_weights_and_votes_are_those_that_routing_used(options: dict[str, Any]) -> None:
    """They share each part out; each iteration's mean is that of the votes by the weights before it, by no others."""
    found = look(small(**options), IMAGE)
    for layer in found.routings:
        assert len(layer.weights) == options.get("iterations", 2) + 1
        step, (high, wide) = layer.stride, layer.votes.shape[2:4]
        for weight in layer.weights:
            assert weight.min() >= 0
            for y, x in np.ndindex(weight.shape[:2]):
                window = layer.children.activation[:, y * step : y * step + high, x * step : x * step + wide]
                np.testing.assert_allclose(weight[y, x].sum(-1), window.transpose(1, 2, 0), rtol=1e-12)
        for before, mean in zip(layer.weights, layer.means, strict=False):
            mass = before.sum((2, 3, 4))[..., None] + MASS_FLOOR
            np.testing.assert_allclose((before[..., None] * layer.votes).sum((2, 3, 4)) / mass, mean, atol=1e-12)
        np.testing.assert_allclose(layer.means[-1].transpose(2, 3, 0, 1), layer.parents.pose, atol=1e-12)
    # The last layer sees every part once.
    last = found.routings[-1]
    assert last.weights[0].sum() == pytest.approx(last.children.activation.sum(), rel=1e-12)


def test_capsules_are_those_of_the_network(inside: Inside) -> None:
    trained = network().double()
    seen: list[tuple[Tensor, Tensor]] = []
    trained.extractor.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs))
    with torch.inference_mode():
        answer = trained(torch.from_numpy(IMAGE[None]).double())
    np.testing.assert_allclose(inside.logit, answer.logit[0], atol=1e-5)
    np.testing.assert_allclose(inside.pose, answer.pose[0], atol=1e-5)
    primary = inside.routings[0].children
    np.testing.assert_allclose(primary.pose, seen[0][0][0], atol=1e-5)
    np.testing.assert_allclose(primary.activation, seen[0][1][0], atol=1e-5)
    names = [inside.routings[0].children.name, *(layer.parents.name for layer in inside.routings)]
    assert names == [PRIMARY, "capsules1", "capsules2", "classes"]
    np.testing.assert_allclose(inside.routings[-1].logits[-1][0, 0], inside.logit, rtol=1e-12)
    assert not routing._watchers  # looking inside leaves others alone


def test_an_answer_that_is_not_finite_is_said() -> None:
    program = small()
    for name in program.arrays:
        if name.startswith("pose."):
            program.arrays[name][:] = 3e38  # sums of products of such are beyond float64
    with pytest.raises(CheckFailed, match="not finite"):
        look(program, IMAGE)


def test_what_every_part_says_ends_at_some_class(inside: Inside) -> None:
    by_class = [evidence(inside, k) for k in range(4)]
    for layers in zip(*by_class, strict=True):
        for stages in zip(*(one.ending for one in layers), strict=True):
            np.testing.assert_allclose(sum(stages), 1, rtol=1e-12)
    # Before routing the classes have even shares, and so has each place.
    np.testing.assert_allclose(by_class[0][0].by_place(0), 1 / 4, rtol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_votes_are_followed_to_the_class(stride: int) -> None:
    """One part at a time, by all ways up: what `evidence` does with whole arrays.

    With stride 2 no window sees the last row of 10×11 places, which then says nothing.
    """
    found = look(small(stride=stride, iterations=3), IMAGE)
    chances = np.zeros((4, 1, 1))
    chances[2] = 1
    for layer, one in zip(reversed(found.routings), evidence(found, 2), strict=True):
        weights = layer.weights[2]  # of three iterations the last was made from the weights after the second
        types, high, wide = layer.children.activation.shape
        above = np.zeros((types, high, wide))
        for c, y, x in np.ndindex(above.shape):
            given = total = 0.0
            for top, left in np.ndindex(weights.shape[:2]):
                p, q = y - top * layer.stride, x - left * layer.stride
                if 0 <= p < weights.shape[2] and 0 <= q < weights.shape[3]:
                    given += float(weights[top, left, p, q, c] @ chances[:, top, left])
                    total += float(weights[top, left, p, q, c].sum())
            above[c, y, x] = given / total if total else 0.0
        np.testing.assert_allclose(one.shown, above, rtol=1e-10)
        assert np.isfinite(one.by_pixel(0, IMAGE.shape[1:])).all()
        chances = above
    assert above[:, -1].any() == (stride == 1)


def test_evidence_is_where_it_was_planted(inside: Inside) -> None:
    """All of the last layer's places but one give nothing to the class: the image is hot where that one looks."""
    layer = inside.routings[-1]
    weights = np.zeros_like(layer.weights[0])
    weights[..., 0] = layer.children.activation.transpose(1, 2, 0)
    weights[0, 0, 0, 0, :, :] = np.roll(weights[0, 0, 0, 0], 1, axis=-1)
    planted = Inside((*inside.routings[:-1], replace(layer, weights=(weights,) * 3)))
    found = evidence(planted, 1)
    assert found[0].by_place(0)[0, 0] == pytest.approx(1)
    assert found[0].by_place(0).sum() == pytest.approx(1)
    for one in found:
        heat = one.by_pixel(1, IMAGE.shape[1:])
        top, left = np.unravel_index(heat.argmax(), heat.shape)
        assert top < 5 and left < 5, one.routing.children.name
        assert heat[-3:, -3:].max() < 0.2 * heat.max()


def test_the_loudest_parts_are_in_order(inside: Inside) -> None:
    found = loudest(evidence(inside, 1)[0], 1, 1000)
    weights = [part.weight for part in found]
    assert weights == sorted(weights, reverse=True) and sum(weights) == pytest.approx(1)
    best = found[0]
    assert best.activation == inside.routings[-1].children.activation[best.type, best.row, best.column]
    assert loudest(evidence(inside, 1)[0], 1, 3) == found[:3]


def test_a_place_depends_on_its_field_and_on_nothing_else() -> None:
    """Changing a pixel changes a capsule if and only if its field covers it."""
    program = small()
    model = Interpreter(program, every_layer=True, kernels="reference").double().eval()
    outputs = [output.name for output in model.outputs]
    image = torch.from_numpy(IMAGE[None]).double().requires_grad_()
    given = dict(zip(outputs, model(image), strict=True))
    for name in ("capsules1", "capsules2"):
        down, across = fields(program)[f"{name}.activation"]
        value = given[f"{name}.activation"]
        for y, x in ((0, 0), (2, 1), (value.shape[2] - 1, value.shape[3] - 1)):
            (gradient,) = torch.autograd.grad(value[0, :, y, x].sum(), image, retain_graph=True)
            rows, columns = (np.flatnonzero(gradient[0].abs().sum((0, axis)).numpy()) for axis in (2, 1))
            for field, place, seen, side in ((down, y, rows, 20), (across, x, columns, 22)):
                low, high = field.low + place * field.step, field.high + place * field.step
                assert (seen[0], seen[-1] + 1) == (max(low, 0), min(high, side))


def test_heat_keeps_its_sum_and_its_place() -> None:
    seen = Field(-3, 4, 2), Field(-5, 6, 2)
    weights = np.zeros((4, 5))
    weights[1, 3] = 2.0
    heat = over_image(weights, seen, (8, 10))
    assert heat.shape == (8, 10) and heat.min() >= 0
    assert heat.sum() == pytest.approx(2)
    assert np.unravel_index(heat.argmax(), heat.shape) == (2, 6)  # the middle of −1 to 6 and of 1 to 12
    assert not heat[6:].any() and not heat[:, 0].any()
    np.testing.assert_allclose(over_image(np.ones((4, 5)), seen, (8, 10)).sum(), 20)


# Pictures and drawings


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_seen_as_in_training(tmp_path: Path, channels: int) -> None:
    """Also that of a camera held sideways, which says so."""
    source = source_of(small(), image=(channels, 20, 22))
    colour = np.tile(np.linspace(0, 255, 44).round().astype(np.uint8)[:, None], (40, 1, 3))
    turned = Image.fromarray(np.rot90(colour))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    upright = save(tmp_path / "upright.png", colour)
    fitted = fit(read_picture(upright), source.image, source.preprocessing.fit)
    expected = preprocess(torch.from_numpy(fitted[None]), source.preprocessing)[0].numpy()
    for path in (upright, tmp_path / "turned.png"):
        found = from_file(path, source)
        assert np.array_equal(found.input, expected) and found.size == (44, 40)


def pixels_of(uri: str) -> Array:
    kept = base64.b64decode(uri.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(kept)).convert("RGB")).astype(int)


def test_heat_is_drawn_where_it_is_and_on_one_scale() -> None:
    heat = np.zeros((20, 22))
    heat[:, 15:] = 1
    shown = pixels_of(drawing.with_heat(np.zeros((2, 20, 22), np.float32), heat, 0, 1))
    assert shown.shape == (200, 220, 3)
    assert shown[:, :140].mean() + 50 < shown[:, 170:].mean()
    found = evidence(look(small(), IMAGE), 1)
    rows = panels.rows(picture_of(0 * IMAGE), found, panels.scale(found, 4))
    assert [row["name"] for row in rows] == ["capsules2", "capsules1", PRIMARY]
    # A layer's picture is as bright as its share says, whichever layer it is: the image under it is the same.
    stages = [stage for row in rows for stage in row["stages"]]
    pairs = sorted((float(stage["figure"].removesuffix(" %")), pixels_of(stage["picture"]).mean()) for stage in stages)
    assert pairs[-1][0] > pairs[0][0] + 1
    assert all(bright > dim for low, dim in pairs for high, bright in pairs if high > low + 2)


@pytest.mark.parametrize("value", [-3.0, 20.0])
def test_a_layer_that_is_the_same_everywhere_has_one_colour(value: float) -> None:
    same = Capsules(
        "flat", np.full((2, 3, 4), value) + 1e-4 * np.eye(4)[:3], np.zeros((2, 3, 3, 4)), (Field(0, 1, 1),) * 2
    )
    shown = panels.layer(picture_of(IMAGE), same)
    assert (shown["low"], shown["high"]) == (f"{value:.2f}".replace("-", "−"), f"{value + 0.1:.2f}".replace("-", "−"))
    for uri in (shown["overview"], *(one["picture"] for one in shown["maps"])):
        assert abs(pixels_of(uri) - [0x44, 0x01, 0x54]).max() <= 1


def test_small_differences_look_small() -> None:
    found = evidence(look(small(), IMAGE), 0)[-1]
    nearly = replace(found, ending=tuple(0.99 + 0.001 * one for one in found.ending))
    assert panels.heat(picture_of(IMAGE), nearly)[1] == ("90 %", "100 %")


def test_drawings_turn_without_changing_lengths() -> None:
    points = np.random.default_rng(0).normal(size=(9, 3))
    for yaw, pitch in ((0, 0), (0.4, -1.2), (3, 1)):
        x, y, depth = drawing.project(points, yaw, pitch).T
        np.testing.assert_allclose(np.hypot(np.hypot(x, y) / 100, depth), np.linalg.norm(points, axis=1))
    assert drawing.project(np.eye(3), 0, 0).tolist() == [[100, 0, 0], [0, -100, 0], [0, 0, 1]]
    zero = drawing.arrow("other", np.zeros(3), "nothing")
    assert "nan" not in str(zero)


# The page


def test_the_page_has_every_panel_and_asks_for_nothing(inside: Inside) -> None:
    program = small()
    html = page(source_of(program), picture_of(IMAGE), inside, 1, "qcn explain …")
    assert re.findall(r'<section id="(\w+)">', html) == list(PANELS)
    assert html.count('<svg class="globe"') == 4  # votes at three stages, and the poses
    assert html.count("before routing") >= 4 and html.count("after iteration 2") >= 4
    assert html.count('class="arrow other"') == 3
    for types in (7, 5, 6):
        assert f"{types} types at" in html
    assert html.count('alt="Type ') == 7 + 5 + 6
    outside = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?(?!data:)([^"\'> ]+)', html)
    assert outside == []
    assert "http:" not in html and "https:" not in html
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script and script[1] == (HERE / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html and "default-src 'none'" in html
    assert html.count("<script") == 1
    assert len(html) < 1.5e6


@pytest.mark.parametrize("options", [{"iterations": 1}, {"iterations": 5}, {"classes": 1}, {"classes": 40}], ids=str)
def test_networks_of_any_shape_have_a_page(options: dict[str, Any]) -> None:
    program = small(**options)
    found = look(program, IMAGE)
    html = page(source_of(program), picture_of(IMAGE), found, program.classes - 1, "")
    stages = options.get("iterations", 2) + 1
    assert html.count('class="globe"') == stages + 1
    assert html.count("framed") - html.count(".framed") == 3 + 1  # the layers' pictures, and the votes'
    assert html.count('role="rowheader"') == min(program.classes, panels.CLASSES)
    assert f"class{program.classes - 1}</span>" in html  # the chosen class, however inactive
    assert ("This network routes once" in html) == (options.get("iterations") == 1)
    assert len(html) < 1.5e6


def test_with_one_iteration_the_page_shows_what_the_answer_gives() -> None:
    """The weights that such an answer is made from are even: they would say nothing of any class or place."""
    found = look(small(iterations=1), IMAGE)
    assert np.ptp(found.votes_won) > 1e-3
    first = evidence(found, found.winner)[-1]
    assert np.ptp(first.by_place(first.routing.shown)) > 1e-6


@pytest.mark.parametrize(
    ("label", "tone", "said"),
    [("class0", "passed", "This is right."), ("class1", "failed", "This is wrong"), (None, "open", "")],
)
def test_the_first_screen_says_whether_it_is_right_and_how_sure(
    inside: Inside, label: str, tone: str, said: str
) -> None:
    names = [f"class{k}" for k in range(4)]
    names[0], names[inside.winner] = names[inside.winner], names[0]  # the answer is class0
    html = page(source_of(small(), classes=tuple(names)), picture_of(IMAGE, label=label), inside, 0, "")
    head = html[html.index("<header") : html.index("</header>")]
    sure = probabilities(inside.logit[None], 1.0).max()
    assert f'class="verdict {tone}"' in head and "The network sees: class0" in head and said in head
    assert f"Probability {100 * sure:.1f} %" in head


def test_no_name_becomes_markup(inside: Inside) -> None:
    program = small()
    names = tuple(f"{EVIL}{k}" for k in range(4))
    evil = Inside(
        tuple(
            replace(
                layer,
                children=replace(layer.children, name=EVIL + layer.children.name),
                parents=replace(layer.parents, name=EVIL + layer.parents.name),
            )
            for layer in inside.routings
        )
    )
    picture = picture_of(IMAGE, name=EVIL, label=EVIL)
    html = page(source_of(program, name=EVIL, classes=names), picture, evil, 0, EVIL)
    assert "<script>alert" not in html and "<img src=x" not in html
    assert html.count("<script") == 1
    assert html.count("&lt;script&gt;alert(1)") > 20
    # Nothing in quotes is left open by a quote in a name: all that looks like an attribute is one of ours.
    tags = re.findall(r"<(?!!|/|style|script)[^>]*>", html)
    assert not [tag for tag in tags if "alert" in re.sub(r'"[^"]*"', "", tag)]
    html = page(source_of(program), picture_of(IMAGE, name="a\u202egnp.\x07exe"), inside, 0, "")
    assert "\u202e" not in html and "\x07" not in html and r"a\u202egnp.\x07exe" in html


def test_an_image_of_one_colour_has_a_page() -> None:
    program = small()
    image = np.full(IMAGE.shape, -3.5, np.float32)
    found = look(program, image)
    html = page(source_of(program), picture_of(image), found, found.winner, "")
    assert "nan" not in re.sub(r'"data:[^"]*"', "", html).lower().replace("nano", "")


@pytest.mark.parametrize("symmetry", [1, 2, ROUND])
def test_directions_of_parts_and_classes_are_shown(inside: Inside, symmetry: int) -> None:
    """A vote for a pose along the second axis is one for a camera at the object's left: azimuth 90°, or 270°."""
    layer = inside.routings[-1]
    votes = np.zeros_like(layer.votes)
    votes[..., 1] = -2.0
    pose = np.zeros((4, 3, 1, 1))
    pose[:, 2] = 3.0  # from above
    turned = Inside((*inside.routings[:-1], replace(layer, votes=votes, parents=replace(layer.parents, pose=pose))))
    source = replace(source_of(small()), directions=Directions((symmetry,) * 4, True, (), (12.0,)))
    side = {1: "azimuth 270°, elevation 0°", 2: "azimuth 90°, elevation 0°", ROUND: "any side: it is round"}[symmetry]
    top = "azimuth 0°, elevation 90°" if symmetry else side
    assert {words for *_, words in panels.parts(source, evidence(turned, 1)[0], 1)} == {side}
    assert {bar["direction"] for bar in panels.bars(source, turned, 1)} == {top}
    html = page(source, picture_of(IMAGE), turned, 1, "")
    assert f"Seen from {top}" in html[: html.index("</header>")]
    assert html.count(f"<td>{side}</td>") >= panels.PARTS and ">front</text>" in html and ">i</text>" not in html
    written = record(source, picture_of(IMAGE), turned, 1, "")
    assert written["parts"][0].vote == (0, -2, 0)
    assert (written["direction"] is None) == (symmetry == ROUND)


# The command


def test_a_bundle_and_its_run_say_the_same(bundle: Bundle, run: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "photo.jpg", np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8))
    records = []
    for source, name in ((bundle.folder, "a"), (run, "b")):
        code, printed = ask("explain", source, path, "--save", tmp_path / f"{name}.html", "--json", tmp_path / name)
        assert code == 0, printed
        assert printed.startswith("photo.jpg: ") and str(tmp_path / f"{name}.html") in printed
        records.append(json.loads((tmp_path / name).read_text()))
    first, second = records
    assert first["classes"] == second["classes"] and first["layers"] == second["layers"]
    assert first["answer"] == max(first["classes"], key=lambda name: first["classes"][name]["logit"])
    assert sum(one["votes_won"] for one in first["classes"].values()) == pytest.approx(1)
    assert [layer["name"] for layer in first["layers"]] == [PRIMARY, "capsules1", "capsules2"]
    assert np.array(first["layers"][0]["activation"]).shape == (8, 14, 14)


def test_golden_images_have_the_golden_answer_and_another_class_can_be_shown(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    golden = bundle.golden()
    for row in (1, 17, len(golden.rows)):  # an image of the data set, black, and inputs that no image gives
        code, printed = ask("explain", bundle.folder, "--golden", row, "--class", "3", "--json", "numbers.json")
        assert code == 0, printed
        record = json.loads(Path("numbers.json").read_text())
        found = [one["logit"] for one in record["classes"].values()]
        np.testing.assert_allclose(found, golden.reference.logit[row - 1], atol=1e-5)
        assert record["image"] == golden.rows[row - 1] and record["shown"] == "3"
        assert record["label"] == (bundle.manifest.classes[golden.label[row - 1]] if row == 1 else None)
        assert "Who voted for 3" in Path(f"runs/explain/golden{row}.html").read_text()


def test_wrong_input_is_one_clear_line(bundle: Bundle, run: Path, tmp_path: Path) -> None:
    good = save(tmp_path / "good.png", np.zeros((9, 9), np.uint8))
    text = tmp_path / "text.png"
    text.write_text("no picture")
    cut = tmp_path / "cut.png"
    noise = np.random.default_rng(0).integers(0, 256, (50, 50, 3), np.uint8)
    cut.write_bytes(save(tmp_path / "whole.png", noise).read_bytes()[:4000])
    real = tmp_path / "real.tiff"
    Image.new("F", (9, 9)).save(real)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((bundle.folder,), "give a picture, or one of the bundle's golden images"),
        ((bundle.folder, good, "--golden", 1), "(not both)"),
        ((bundle.folder, "--golden", 0), "--golden must be from 1 to 22, not 0"),
        ((bundle.folder, "--golden", 23), "--golden must be from 1 to 22, not 23"),
        ((run, "--golden", 1), "a training run, which has no golden images"),
        ((tmp_path, good), "neither a training run (no run.json) nor a bundle (no manifest.json)"),
        ((bundle.folder, tmp_path / "missing.png"), "there is no file"),
        ((bundle.folder, tmp_path), "is a folder; name one picture"),
        ((bundle.folder, text), "text.png is not a picture that Pillow can read"),
        ((bundle.folder, cut), "cut.png cannot be read as a picture"),
        ((bundle.folder, real), "floating-point values have no range that is white"),
        ((bundle.folder, good, "--class", "eleven"), "no class named 'eleven'"),
        ((bundle.folder, good, "--save", tmp_path), "is a folder; --save names a file"),
        ((bundle.folder, good, "--json", tmp_path), "is a folder; --json names a file"),
    ]
    before = set(tmp_path.rglob("*"))
    for arguments, message in cases:
        more = () if "--save" in arguments else ("--save", tmp_path / "page.html")
        code, printed = ask("explain", *arguments, *more)
        assert code == 2 and message in printed, printed
        assert printed.count("\n") == 1 and printed.startswith("qcn: "), printed
    assert set(tmp_path.rglob("*")) == before  # nothing was written


def test_a_network_without_capsules_is_refused(tmp_path: Path) -> None:
    cnn = product.create("cnn", in_channels=1, classes=3, size=20).eval()
    bundle = bundle_of(tmp_path / "cnn", cnn, 20, 20)
    code, printed = ask("explain", bundle.folder, "--golden", 1, "--save", tmp_path / "p.html")
    assert code == 2 and "has no capsules" in printed and printed.count("\n") == 1
    assert not (tmp_path / "p.html").exists()


def test_a_picture_is_not_taken_for_a_stereo_pair(tmp_path: Path) -> None:
    pair = product.create("qcn-tiny", in_channels=2, classes=3).eval()
    bundle = bundle_of(tmp_path / "pair", pair, 24, 24)
    path = save(tmp_path / "a.png", np.zeros((24, 24, 3), np.uint8))
    code, printed = ask("explain", bundle.folder, path, "--save", tmp_path / "p.html")
    assert code == 2 and "2 channels (stereo)" in printed and "--golden" in printed
    code, printed = ask("explain", bundle.folder, "--golden", 1, "--save", tmp_path / "p.html")
    assert code == 0 and "two eyes" in (tmp_path / "p.html").read_text()
    run = replace(open_source(bundle.folder), bundle=None)  # as a training run is opened
    with pytest.raises(UsageError, match=r"`qcn export` makes a bundle of a run, and --golden shows"):
        from_file(path, run)


def altered(program: Program, last: Route, *more: Operation) -> Program:
    """The program with another last layer, and `more` before it."""
    pose, logit = (one.name for one in last.outputs)
    count = math.prod(last.shape)
    outputs = (Output("logit", logit, (count,)), Output("pose", pose, (count, 3)))
    return replace(program, operations=(*program.operations[:-1], *more, last), outputs=outputs)


def test_a_program_that_is_no_chain_of_layers_is_refused(tmp_path: Path) -> None:
    program = small()
    _, second, last = program.routes
    high, wide = last.window
    cases = {
        "the capsule layer 'around' does not follow 'capsules2'": altered(
            program, last, replace(second, name="around")
        ),
        "does not come from its last capsule layer": altered(program, replace(last, ending="sigmoid")),
        r"the last capsule layer is \[4, 2, 1\]": altered(
            program, replace(last, window=(high - 1, wide), shape=(4, 2, 1))
        ),
    }
    check_capsules(tmp_path, program)
    for message, wrong in cases.items():
        with pytest.raises(UsageError, match=message):
            check_capsules(tmp_path, wrong)


BROWSER = chromium.find()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium")
def test_in_a_browser(tmp_path: Path, inside: Inside) -> None:
    long = tuple(f"{'a-very-long-name-without-a-place-to-break' * 2}{k}" for k in range(4))
    file = tmp_path / "page.html"
    file.write_text(page(source_of(small(), classes=long), picture_of(IMAGE, name=EVIL), inside, 1, "qcn explain"))
    at = "document.querySelector('.arrow.chosen polyline').getAttribute('points')"
    with Browser(str(BROWSER), tmp_path / "profile") as browser:
        for width in (390, 1280):
            for dark in (False, True):
                browser.show(file, width, dark)
                browser.check_width(width)
        assert browser.ask("[...document.images].filter(i => !i.complete || !i.naturalWidth).length") == 0
        before = browser.ask(at)
        browser.ask("turn(groups.votes, 0, 0)")  # the script draws what Python drew, to a tenth
        here, there = ([float(x) for x in re.split("[ ,]", text)] for text in (before, browser.ask(at)))
        np.testing.assert_allclose(here, there, atol=0.11)
        press = "document.querySelector('svg.globe').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))"
        browser.ask(press)
        assert browser.ask(at) != before
        assert browser.complaints == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
