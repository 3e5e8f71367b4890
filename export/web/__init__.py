"""One page that runs a network in a browser: no server, no network, nothing to install. No torch here.

`page` puts together what others made: libqcn as WebAssembly (deploy/web, built once by `make web`), the weights of a
bundle, and the files of this folder:

    libqcn.js   calls libqcn, in the page's worker and in Node
    toys.js     the renderer of `viewpoints` once more
    answers.js  the networks, and how their answers are shown
    page.js     what a person can show them
    node.js     answers `qcn.verify.runners.web`; not in the page
"""
