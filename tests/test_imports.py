"""Nothing flows back up: no module of the product imports, by any way round, one that imports it."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
Graph = dict[str, set[str]]


def product_modules() -> dict[str, Path]:
    """Every module by the name that it is installed under."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]["packages"]
    modules = {}
    for package, folder in folders.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            modules[".".join((*package.split("/"), *parts)).removesuffix(".__init__")] = path
    return modules


def imports_of(name: str, source: str, modules: set[str]) -> set[str]:
    """The modules that `name` imports anywhere, in functions and for type checking too, with their packages.

    Its own packages are left out: importing a module runs them first, whatever it imports itself.
    """
    named: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}: imports are absolute here"
            named |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    parts = [one.split(".") for one in named if one.split(".")[0] == "qcn"]
    reached = {".".join(one[:length]) for one in parts for length in range(1, len(one) + 1)} & modules
    return {one for one in reached if one != name and not name.startswith(f"{one}.")}


def cycle(graph: Graph) -> list[str]:
    """The modules of one circle in the order of their imports; none if there is no circle."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for imported in sorted(graph[name]):
                if found := follow(imported, [*path, name]):
                    return found
            done.add(name)
        return []

    return next(filter(None, (follow(name, []) for name in sorted(graph))), [])


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = product_modules()
    assert {"qcn", "qcn.export", "qcn.train", "qcn.kernels.native"} <= modules.keys()
    graph = {name: imports_of(name, path.read_text(), set(modules)) for name, path in modules.items()}
    assert " → ".join(cycle(graph)) == ""


def test_a_circle_is_found_through_functions_type_checking_and_packages() -> None:
    sources = {
        "qcn": "",
        "qcn.top": "from qcn.room import table",
        "qcn.room": "from qcn.room.chair import sit",
        "qcn.room.chair": "def sit():\n    from qcn import floor",
        "qcn.room.table": "",
        "qcn.floor": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from qcn.top import Top",
    }
    graph = {name: imports_of(name, source, set(sources)) for name, source in sources.items()}
    assert cycle(graph) == ["qcn.floor", "qcn.top", "qcn.room", "qcn.room.chair", "qcn.floor"]
    graph["qcn.floor"] = set()
    assert cycle(graph) == []
