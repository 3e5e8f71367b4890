"""The documentation says what the code does: figures come from files, links lead somewhere, options exist."""

import csv
import re
import statistics
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "models" / "README.md"]
DEPLOY_PAGES = sorted((ROOT / "deploy").rglob("*.md"))


def test_the_pages_are_short() -> None:
    """What a newcomer is asked to read: it may grow with a reason in the commit."""
    indexes = [ROOT / name / "README.md" for name in ("deploy", "deploy/jetson", "benchmarks", "examples")]
    words = {
        page: len(page.read_text(encoding="utf-8").split()) for page in [*PAGES, ROOT / "CONTRIBUTING.md", *indexes]
    }
    assert sum(words.values()) <= 35_000
    assert words[ROOT / "docs" / "results.md"] <= 3_000


def test_tables_are_those_of_the_benchmark_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    shown = []
    for path in tables.PAGES:
        text = path.read_text(encoding="utf-8")
        assert text == tables.page(text), f"{path.name}: run benchmarks/tables.py"
        shown += re.findall(r"<!-- table: ([\w-]+) -->", text)
        assert text.count("<!-- table:") == text.count("<!-- end of table -->"), path.name
    assert sorted(shown) == sorted(tables.TABLES)
    assert tables.RUNS.read_text(encoding="utf-8") == tables.runs_csv()


def test_every_benchmark_is_in_the_index() -> None:
    folder = ROOT / "benchmarks"
    text = (folder / "README.md").read_text(encoding="utf-8")
    files = [*folder.glob("*.py"), *folder.glob("*.sh"), *folder.glob("results/*.*")]
    assert [path.name for path in files if path.name not in text] == []


def test_figures_in_the_readme_are_those_of_the_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- figures:.*?-->(.*?)<!-- end of figures -->", text, re.DOTALL)
    assert table
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "speed.md", "calibrate.md")]
    known = set(re.findall(r"\d[\d,.]*", " ".join(pages)))
    figures = re.findall(r"\d[\d,.]*", " ".join(row.partition("|")[2] for row in table[1].splitlines()[4:]))
    assert len(figures) > 10
    assert [figure for figure in figures if figure not in known] == []


def test_errors_in_the_readme_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import comparison
    import measurements

    rows = measurements.read("accuracy-h200.json")["results"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    azimuth, elevation = "viewpoints-azimuth", "viewpoints-elevation-pooled"
    sets = (f"{azimuth}-pooled", azimuth, elevation, "cifar10")
    lines = text.partition("| error, % |")[2].splitlines()[2:]
    for model, line in zip((*comparison.OURS, *comparison.RIVALS), lines, strict=False):
        cells = [cell.strip(" *") for cell in line.split("|")[3:-1]]
        runs = [comparison.choose(rows, dataset, model) for dataset in sets]
        assert cells == [f"{comparison.mean_error(of):.2f}" if of else "" for of in runs], line
    compared = ((f"{azimuth}-pooled", "qcn"), (azimuth, "qcn"), (azimuth, "qcn-deep"))
    expected = [
        re.fullmatch(r"([\d.]+)×, p = ([\d.]+)", comparison.fair_ratio(rows, dataset, model, theirs)).groups()
        for dataset, model in compared
        if (theirs := comparison.choose(rows, dataset, "cnn-small"))
    ]
    better = text.partition("**QCN is better**")[2].partition("**It is not")[0].replace("\n", " ")
    assert re.findall(r"([\d.]+) times.*?p = ([\d.]+)", better) == expected


def test_figures_of_augmentation_are_those_of_the_runs() -> None:
    training = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    with (ROOT / "docs" / "runs.csv").open(encoding="utf-8", newline="") as file:
        runs = [row for row in csv.DictReader(file) if row["dataset"] == "viewpoints-azimuth-pooled"]
    cells = re.findall(r"^\| `([\w-]+)`, .*?((?: \| [\d.]+ % \(\d+ seeds\)){3}) \|$", training, re.M)
    assert [model for model, _ in cells] == ["qcn", "cnn-small"]
    for model, errors in cells:
        figures = re.findall(r"([\d.]+) % \((\d+) seeds\)", errors)
        for augment, (error, seeds) in zip(("light", "turned", "strong"), figures, strict=True):
            by_seed: dict[str, list[float]] = {}
            for row in runs:
                if (row["model"], row["settings"], row["epochs"]) == (model, augment, "30"):
                    by_seed.setdefault(row["seed"], []).append(float(row["error_percent"]))
            mean = statistics.mean(statistics.mean(one) for one in by_seed.values())
            assert (f"{mean:.2f}", str(len(by_seed))) == (error, seeds), (model, augment)


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES, *DEPLOY_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]+))?\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_security_knows_every_file_of_a_bundle_and_every_command_that_reads_one() -> None:
    from qcn.cli import app
    from qcn.export.backends import FORMATS

    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    patterns = re.findall(r"`([^`]+)`", text.partition("may it run code?")[2].partition("\n\n")[0])
    for file in (*(one.file for one in FORMATS.values() if one.name != "trt"), "engines/a.engine"):
        assert any(fnmatch(file.replace("*", ""), pattern) for pattern in patterns), file
    loads = text.partition("what it loads of a bundle")[2].partition("\n\n")[0]
    for command in get_command(app).commands.keys() - {"train", "sweep", "models", "datasets", "report"}:  # type: ignore[attr-defined]
        assert f"`qcn {command}" in loads, command


def parameters(command: Any) -> Iterator[Any]:
    """Of a command and those below it."""
    yield from command.params
    for below in getattr(command, "commands", {}).values():
        yield from parameters(below)


def test_every_option_in_the_documentation_exists() -> None:
    from qcn.cli import app

    others = {"--nproc-per-node", "--help", "--list", "--seeds", "--constraint", "--install"}
    others |= {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--nodes", "--ntasks-per-node"}
    others |= {"--gpus-per-node", "--cpus-per-task", "--field", "--field-pictures", "--no-deps", "--exit-on-error"}
    others |= {"--model-repository"}
    known = others.union(*((*one.opts, *one.secondary_opts) for one in parameters(get_command(app))))
    for page in PAGES:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", page.read_text(encoding="utf-8")):
            assert option in known, f"{option} in {page.name}"


def test_pages_name_the_same_versions_of_python() -> None:
    """The toolkit runs with the one that pyproject.toml requires, `make` with the one that the Makefile checks."""
    project, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "Makefile"))
    (runs,) = re.findall(r'^requires-python = ">=(3\.\d+)"', project, re.MULTILINE)
    (major, minor), *others = re.findall(r"sys.version_info >= \((\d), (\d+)\)", makefile)
    assert not others and f'python_version = "{runs}"' in project  # of mypy
    for name in ("README.md", "CONTRIBUTING.md", "docs/install.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert set(re.findall(r"Python (3\.\d+) or newer", text)) == {runs, f"{major}.{minor}"}, name


def test_every_backend_has_a_row() -> None:
    from qcn.export.backends import BACKENDS

    rows = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8").splitlines()
    named = [name for row in rows if row.startswith("| `") for name in re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(BACKENDS)


def test_the_page_of_settings_is_made_from_their_definitions() -> None:
    from qcn.cli.reference import page

    made = "python -m qcn.cli.reference > docs/settings.md"
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == page(), made


def test_the_shell_has_few_options() -> None:
    """What a person can look through; rare settings are given by --set."""
    from qcn.cli import app

    options = sum(one.param_type_name == "option" for one in parameters(get_command(app)))
    assert options <= 123  # three are of `qcn` itself
