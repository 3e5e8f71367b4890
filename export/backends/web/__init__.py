"""One page that runs a network in a browser: no server, no network, nothing to install. No torch here.

`page` puts together what others made: libqcn as WebAssembly (deploy/web, built once by `make web`), the weights of a
bundle, and the files of this folder:

    libqcn.js   calls libqcn, in the page's worker and in Node
    toys.js     the renderer of `viewpoints` once more
    answers.js  the networks, and how their answers are shown
    page.js     what a person can show them
    node.js     answers `runner`; not in the page
"""

from qcn.export.backends.definition import Backend, FileFormat, Piece, Registration

BUILD = "apt install emscripten && make build/web/qcn-simd.wasm"  # in a clone
INSTALL_NODE = "apt install nodejs"
WORDS = ("tfjs", "wasm", "webassembly", "html", "browser")

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "web",
            "page.html",
            "web.format:PAGE",
            precisions=("fp32", "fp16", "int8"),
            follows_weights=True,
            options=("beside",),
            hints=dict.fromkeys(WORDS, "a browser runs --format web"),
        ),
    ),
    backends=(Backend("web", ("web",), "web.runner:WebRunner", shows_layers=True, isolated=True, loads=True),),
    pieces=(
        Piece("WebAssembly", "pages (--format web)", BUILD, look="web.format:wasm"),
        Piece("Node", "running a page without a browser", INSTALL_NODE, look="web.format:node"),
    ),
)
