"""Results of benchmarks: reads, writes and merges them, and records when, where and by which commit each was measured.

A file is JSON, or a CSV with one line per row. Every row of it carries its date, machine and commit.
"""

import csv
import datetime
import io
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from qcn.export.targets import this_gpu
from qcn.packages import installed
from qcn.storage.files import folder_lock, write_text

Row = dict[str, Any]
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def stamp() -> Row:
    """Date, machine, commit and versions of a measurement. QCN_COMMIT names the commit where there is no git."""
    gpu = this_gpu()
    versions = {"python": platform.python_version()}
    if installed("torch"):
        import torch

        versions["torch"] = torch.__version__
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": os.environ.get("QCN_COMMIT") or _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores" + (f", {gpu.name}" if gpu else ""),
        "versions": versions,
    }


def machine() -> Row:
    """Where and by which code a run is trained, for its result."""
    now, gpu = stamp(), this_gpu()
    return {"gpu": gpu.name if gpu else None, **now["versions"], "commit": now["commit"], "date": now["date"]}


def seeds_of(text: str) -> list[int]:
    """ "3" or "0-4"."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def read(name: str) -> Any:
    """A JSON file of benchmarks/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def rows_of(file: Path) -> list[Row]:
    """The rows in a file; none if it does not exist. A CSV has texts, and nothing for an empty cell."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".csv":
        rows: list[Row] = json.loads(text)["results"]
        return rows
    return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(io.StringIO(text))]


def put(file: Path, rows: Sequence[Row], *key: str, **about: Any) -> int:
    """Merge rows into a file, in place of those with the same `key`, and return how many there are now.

    `about` goes to the head of a JSON file. Several processes may do this at once.
    """
    now = stamp()
    here = {name: now[name] for name in ("date", "machine", "commit")}
    file.parent.mkdir(parents=True, exist_ok=True)
    with folder_lock(file.parent):
        every = [*rows_of(file), *({**here, **row} for row in rows)]
        merged = list({tuple(str(row.get(name, "")) for name in key): row for row in every}.values())
        write_text(file, csv_text(merged) if file.suffix == ".csv" else _json({**now, **about, "results": merged}))
    return len(merged)


def write(file: Path | None, **record: Any) -> None:
    """Write a JSON file anew, with the stamp at its head; nothing without a file."""
    if file:
        write_text(file, _json({**stamp(), **record}))


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows by their key, in the order in which keys come first."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _json(record: Row) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as a CSV, with a column for every name."""
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _commit() -> str:
    """HEAD, with `-dirty` if files differ from it, other than results."""
    here, others = Path(__file__).parent, [":/", ":(top,exclude)benchmarks/results"]
    try:
        head = subprocess.run(["git", "describe", "--always"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *others], cwd=here, check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("-dirty" if changed.returncode else "")
