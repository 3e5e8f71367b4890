"""Gathers what was measured of a bundle on a device, so that benchmarks/tables.py can show it.

    python benchmarks/deployed.py --json FILE --commit COMMIT RESULT...

A RESULT is what `qcn benchmark --json`, `qcn verify-parity --report` (report.json) or `qcn-bench --json` wrote, as
deploy/tests/tensorrt_on_gpu.sh leaves them. Figures are copied; errors are joined to times by backend, file and
precision.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qcn.verify.parity.results import Report, read_report
from qcn.verify.speed.results import Benchmark, read_benchmark

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--commit", required=True, help="of the code that measured; several where they differ")
    arguments = parser.parse_args()
    records = {path: json.loads(path.read_text(encoding="utf-8")) for path in arguments.results}
    benchmarks = [read_benchmark(path) for path, record in records.items() if "plan" in record]
    reports = [read_report(path) for path, record in records.items() if "backends" in record]
    if not benchmarks:
        parser.error("none of them is a result of `qcn benchmark`")
    parity = [row for report in reports for row in parities(report)]
    errors = {key(row): row for row in parity}
    gathered = {
        "commit": arguments.commit,
        "machine": asdict(benchmarks[0].machine),
        "benchmark": [row | errors[key(row)] for record in benchmarks for row in times(record)],
        "parity": parity,
        "libqcn": [programs(record) for record in records.values() if "load_ms" in record],
    }
    arguments.json.write_text(json.dumps(gathered, indent=1) + "\n", encoding="utf-8")


def key(row: Row) -> tuple[str, str, str]:
    return row["backend"], row["file"], row["precision"]


def times(record: Benchmark) -> list[Row]:
    """The rows of `qcn benchmark`."""
    return [
        {
            "backend": speed.backend,
            "file": speed.file,
            "precision": speed.precision,
            "batch": speed.batch,
            "runner": speed.runner,
            "images_per_second": speed.images_per_second,
            "variant": speed.variant,
            "latency_ms": speed.latency_ms.p50,
            "p99_ms": speed.latency_ms.p99,
            "compute_ms": speed.compute_ms.p50 if speed.compute_ms else None,
            "energy_mj": speed.energy_mj,
        }
        for speed in record.results.values()
        if speed.latency_ms
    ]


def parities(report: Report) -> list[Row]:
    """The rows of `qcn verify-parity`."""
    return [
        {
            "backend": verdict.backend,
            "file": verdict.file,
            "precision": verdict.precision,
            "status": verdict.status,
            "errors": {name: found.max_abs for name, found in verdict.outputs.items()},
            "shares": {name: found.share for name, found in verdict.outputs.items()},
        }
        for verdict in report.backends.values()
        if verdict.outputs
    ]


def programs(record: Row) -> Row:
    """What `qcn-bench` says."""
    kept = ("backend", "precision", "batch", "preprocessing", "load_ms", "images_per_second")
    return {**{name: record[name] for name in kept}, "latency_ms": record["latency_ms"]["p50"]}


if __name__ == "__main__":
    main()
