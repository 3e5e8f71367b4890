"""Serve the page of a bundle (`qcn export BUNDLE --format web`) so that it may use threads.

    python examples/serve_page.py BUNDLE [PORT]

A browser lets a page share memory between threads only if its server sends two headers. A page that is opened by a
double click runs too, with one thread. Needs nothing but Python.
"""

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Handler(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


bundle, port = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000
with ThreadingHTTPServer(("localhost", port), partial(Handler, directory=bundle)) as server:
    print(f"http://localhost:{server.server_port}/page.html", flush=True)
    server.serve_forever()
