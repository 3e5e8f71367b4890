"""The page of `qcn explain`: one HTML file that asks nothing of any network.

Its only script is page.js, which the page allows by its hash. Names come from a bundle or a picture, which may be of
unknown origin, so every word is escaped (`qcn.pages.html`).
"""

import base64
import hashlib
from pathlib import Path

from qcn.explain import drawing, panels
from qcn.explain.drawing import INFERNO, VIRIDIS
from qcn.explain.evidence import evidence
from qcn.explain.picture import Picture
from qcn.explain.routing import Inside
from qcn.explain.source import Source
from qcn.pages.html import render
from qcn.terminal.text import readable
from qcn.verify.report.pictures import data_uri

HERE = Path(__file__).parent


def page(source: Source, picture: Picture, inside: Inside, chosen: int, command: str) -> str:
    """The HTML, with `chosen` as the class whose votes are shown."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    result = evidence(inside, chosen)
    heat, ends = panels.heat(picture, result[-1])
    ends_of_rows = panels.scale(result, len(source.classes))
    return render(
        HERE / "page.html.jinja",
        HERE / "page.css",
        script=script,
        digest=digest,
        network=readable(source.name),
        file=readable(picture.name),
        size=picture.size,
        label=picture.label and readable(picture.label),
        right=picture.label == source.classes[inside.winner],
        winner=readable(source.classes[inside.winner]),
        chosen=readable(source.classes[chosen]),
        short=panels.short(readable(source.classes[chosen])),
        other=chosen != inside.winner,
        answer=panels.answer(source, inside),
        small=max(picture.size) <= panels.SMALL,
        input=source.program.input.shape,
        given=panels.given(picture),
        seen=data_uri(drawing.seen(picture.input)),
        heat=heat,
        ends=ends,
        bars=panels.bars(source, inside, chosen),
        classes=len(source.classes),
        even=panels.percent(1 / len(source.classes)),
        rows=panels.rows(picture, result, ends_of_rows),
        ends_of_rows=[panels.percent(end) for end in ends_of_rows],
        iterations=inside.routings[-1].iterations,
        votes=panels.votes(source, inside, chosen),
        parts=panels.parts(source, result[0], chosen),
        poses=panels.poses(source, inside, chosen),
        directions=source.directions is not None,
        layers=[panels.layer(picture, routing.children) for routing in inside.routings],
        viridis=drawing.legend(VIRIDIS),
        inferno=drawing.legend(INFERNO),
        command=command,
    )
