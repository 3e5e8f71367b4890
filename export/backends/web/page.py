"""Puts a page together: libqcn as WebAssembly, the weights, and the scripts. node.js reads its data again."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from qcn.data.viewpoints import light
from qcn.data.viewpoints.dataset import SETS, familiar
from qcn.data.viewpoints.solids import Solid
from qcn.data.viewpoints.toys import CATEGORIES, Toy, toy
from qcn.errors import UsageError
from qcn.export.backends.format import bytes_difference
from qcn.export.backends.web import BUILD
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.manifest import Manifest, manifest_sums
from qcn.libqcn.location import CLONE, PACKAGE, first_file
from qcn.pages.html import render

HERE = Path(__file__).parent
VARIANTS = ("simd", "plain", "threads")
EXAMPLES, EXAMPLE_BYTES = 6, 60_000  # golden images in a page, each with the reference's answer; and their pixels
# Of the toys of `viewpoints`, for toys.js to render:
SHOWN = (0, 5)  # the instances of each category in a page
ALL_ROUND = (0, 340)  # degrees of azimuth
DIGITS = 7  # after the point: pixels are computed in float32


def wasm_file(variant: str) -> Path:
    """libqcn for browsers: the package's own, or the one that `make web` builds."""
    places = [folder / "web" / f"qcn-{variant}.wasm" for folder in (PACKAGE, CLONE / "build")]
    fix = f"in a clone of the repository `{BUILD}` makes it, and `make wheels` then puts it into the wheels"
    return first_file(places, "a page needs libqcn as WebAssembly, which is not at", fix)


def write_page(bundle: Bundle, beside: Bundle | None, path: Path) -> dict[str, Any]:
    """Write the page of a bundle, with the network of another bundle beside its own; returns facts for the manifest."""
    networks = (bundle, *([beside] if beside else ()))
    if beside and (beside.manifest.classes, beside.manifest.image) != (bundle.manifest.classes, bundle.manifest.image):
        raise UsageError(
            f"{beside.folder} cannot be shown beside {bundle.folder}: its images are {list(beside.manifest.image)} of "
            f"{len(beside.manifest.classes)} classes, not {list(bundle.manifest.image)} of "
            f"{len(bundle.manifest.classes)}, or its classes have other names"
        )
    path.write_text(page_text(bundle, [network_of(one) for one in networks]), encoding="utf-8")
    return {"networks": [one.manifest.name for one in networks]}


def page_text(bundle: Bundle, networks: list[dict[str, Any]]) -> str:
    """The page of a bundle that shows these networks, of which the first is its own (`network_of`)."""
    data = {
        "wasm": {variant: packed(wasm_file(variant).read_bytes()) for variant in VARIANTS},
        "networks": networks,
        "examples": _examples(bundle),
        "scene": scene(bundle.manifest.image[1], source) if (source := bundle.manifest.source.data) in SETS else None,
    }
    script = "\n".join(map(_text, ("toys.js", "answers.js", "networks.js", "page.js")))
    return render(
        HERE / "page.html.jinja",
        HERE / "page.css",
        name=bundle.manifest.name,
        library=_text("libqcn.js"),
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    )


def networks_in(page: bytes) -> list[dict[str, Any]]:
    """The networks that a page shows, as `network_of` makes them; what is not such a page is refused."""
    result = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    try:
        data = json.loads(result[1]) if result else None
        networks = data["networks"] if isinstance(data, dict) else None
    except (ValueError, KeyError, RecursionError):
        networks = None
    if not isinstance(networks, list) or not networks or not all(isinstance(one, dict) for one in networks):
        raise UsageError("it is not a page that `qcn export --format web` wrote: it has no networks in it")
    return networks


def packed(content: bytes, fours: bool = False) -> dict[str, Any]:
    """Bytes as `unpack` of libqcn.js reads them; `fours`: the bytes of float32 numbers, sorted to become fewer."""
    if fours:
        whole = len(content) // 4 * 4
        content = np.frombuffer(content[:whole], np.uint8).reshape(-1, 4).T.tobytes() + content[whole:]
    return {"base64": base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii"), "fours": fours}


def network_of(bundle: Bundle) -> dict[str, Any]:
    """The files that libqcn reads of a bundle. Of the manifest's entries only that of the weights."""
    weights = bundle.find(WEIGHTS)
    manifest = replace(bundle.manifest, files=(weights,)).to_json()
    return {
        "manifest": manifest,
        "sums": manifest_sums(manifest.encode()).decode(),
        "weights": packed(bundle.read(weights), fours=True),
    }


def _examples(bundle: Bundle) -> list[dict[str, Any]]:
    """Golden images of as many classes as there is room for, and what the reference answers."""
    golden = bundle.golden()
    rows: Sequence[int] = [
        int(np.argmax(golden.label == label)) for label in np.unique(golden.label[golden.label >= 0])
    ]
    return [
        {
            "label": int(golden.label[row]),
            "image": base64.b64encode(golden.image[row].transpose(1, 2, 0).tobytes()).decode("ascii"),
            "logit": golden.reference.logit[row].tolist(),
        }
        for row in rows[: min(EXAMPLES, max(1, EXAMPLE_BYTES // golden.image[0].size))]
    ]


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def page_difference(bundle: Bundle, content: bytes) -> str:
    """Compare a page with the one built now. Tools and test errors may have been added to the bundle since."""
    networks, own = networks_in(content), bundle.manifest
    if len(networks) > 1:
        return "it shows another network beside this one: export it without beside"
    text = networks[0].get("manifest")
    manifest = Manifest.from_json(text) if isinstance(text, str) else None
    if manifest is None or replace(own, tools={}, measured=None, files=()) != replace(
        manifest, tools={}, measured=None, files=()
    ):
        return "its network is described otherwise than in the bundle's manifest"
    if manifest.measured not in (None, own.measured):
        return "it has other errors on test images than the bundle's manifest: export it again"
    like = Bundle(bundle.folder, replace(own, tools=manifest.tools, measured=manifest.measured))
    built = page_text(like, [network_of(like)]).encode()
    return bytes_difference(content, built)


def scene(size: int, data: str) -> dict[str, Any]:
    """Toys, lamps and what else decides a picture of `size` pixels a side, and from where the toys of `data` are seen.

    That is from the first angle to the last, which may be by way of 0°; left out where they are seen from all around.
    """
    toys = [toy(category, instance, seed=0) for instance in SHOWN for category in range(len(CATEGORIES))]
    return {
        "size": size,
        "familiar": {axis: (at[0], at[-1]) for axis, at in familiar(data).items() if (at[0], at[-1]) != ALL_ROUND},
        "samples": light.SAMPLES,
        "stereo": light.STEREO,
        "ground": light.GROUND_ALBEDO,
        "gloss": light.GLOSS,
        "shininess": light.SHININESS,
        "lights": [asdict(lamp) for lamp in light.LIGHTS],
        "toys": [described(one) for one in toys],
    }


def described(toy: Toy) -> dict[str, Any]:
    """A toy as toys.js takes it."""
    return {
        "category": CATEGORIES[toy.category],
        "instance": toy.instance,
        "floor": toy.floor,
        "solids": [_solid(solid) for solid in toy.solids],
    }


def _solid(solid: Solid) -> dict[str, Any]:
    """A solid for toys.js; a ball around its hull limits the pixels that it can touch."""
    middle = (solid.hull.min(0) + solid.hull.max(0)) / 2
    return {
        "matrix": solid.matrix.round(DIGITS).tolist() if solid.matrix.any() else None,
        "centre": solid.centre.round(DIGITS).tolist(),
        "planes": solid.planes.round(DIGITS).tolist(),
        "albedo": round(solid.albedo, DIGITS),
        "middle": middle.round(DIGITS).tolist(),
        "reach": round(float(np.linalg.norm(solid.hull - middle, axis=1).max()) + 10**-DIGITS, DIGITS),
    }
