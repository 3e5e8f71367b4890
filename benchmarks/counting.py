"""The tables of docs/results.md that count what benchmarks/looks.py saw in more than one way. From JSON."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from evidence import Row, by_recipe, by_seed, compared, spread, trained_alike
from pages import table

Look = dict[str, float]  # errors after an epoch: "train", "validation", and each test split


def by_validation(run: Row) -> Look:
    """The checkpoint that training kept as the best."""
    return run["looks"][run["best"] - 1]


def best_look(looks: Sequence[Look], split: str) -> float:
    return min(look[split] for look in looks)


def matched(ours: Sequence[Look], theirs: Sequence[Look], by: str) -> tuple[Look, Look, bool]:
    """Both networks at an equal error of this kind, and whether that chose anything.

    The one that ends with the larger error counts as it ends. The other counts at the first epoch at which its error is
    no larger. Where both end with the same error, both count as they end.
    """
    if ours[-1][by] == theirs[-1][by]:
        return ours[-1], theirs[-1], False
    level = max(ours[-1][by], theirs[-1][by])
    one, other = (
        looks[-1] if looks[-1][by] == level else next(look for look in looks if look[by] <= level)
        for looks in (ours, theirs)
    )
    return one, other, True


def every_row(results: Sequence[Row]) -> str:
    """Each recipe and test split: the error of the checkpoint that validation chose, and the best of all looks."""
    lines = []
    for key, runs in by_recipe(results).items():
        for split in [name for name in runs[0]["looks"][0] if name not in ("train", "validation")]:
            chosen = {run["seed"]: 100 * by_validation(run)[split] for run in runs}
            best = {run["seed"]: 100 * best_look(run["looks"], split) for run in runs}
            told = [f"`{key.dataset}`", f"`{key.model}`", key.varied, str(key.epochs), split]
            lines.append([*told, spread(chosen), spread(best)])
    headings = ["set", "model", "augmentation, and more", "looks", "split", "chosen by validation", "best of all looks"]
    return table(headings, lines)


def _pairs(results: Sequence[Row]) -> list[tuple[list[Row], list[Row]]]:
    """The runs of `qcn` and of `cnn-small` on the same set whose images were varied alike, by the seeds of both."""
    groups = [(key, runs) for key, runs in by_recipe(results).items() if "novel" in runs[0]["looks"][0]]
    pairs = []
    for (ours, our_runs), (theirs, their_runs) in product(groups, groups):
        rivals = (ours.model, theirs.model) == ("qcn", "cnn-small") and ours.dataset == theirs.dataset
        if rivals and trained_alike(our_runs, their_runs):
            one, other = ({run["seed"]: run for run in runs} for runs in (our_runs, their_runs))
            both = sorted(one.keys() & other.keys())
            pairs.append(([one[seed] for seed in both], [other[seed] for seed in both]))
    return [pair for pair in pairs if pair[0]]


def rivals(results: Sequence[Row]) -> str:
    """The novel error of `qcn` and `cnn-small`, by seeds, counted in four ways, and what matching chose."""
    lines, said = [], []
    for ours, theirs in _pairs(results):
        looks = [(our["looks"], their["looks"]) for our, their in zip(ours, theirs, strict=True)]
        ways = {
            "chosen by validation": [
                (by_validation(a)["novel"], by_validation(b)["novel"]) for a, b in zip(ours, theirs, strict=True)
            ],
            "best of all looks": [(best_look(a, "novel"), best_look(b, "novel")) for a, b in looks],
        }
        (key,) = by_recipe(ours)
        name = f"`{key.dataset}`, {key.varied}"
        for by, word in {"familiar": "familiar", "train": "training"}.items():
            found = [matched(a, b, by) for a, b in looks]
            ways[f"at equal {word} error"] = [(a["novel"], b["novel"]) for a, b, _ in found]
            said.append(_what_matching_chose(name, word, by, found))
        for way, errors in ways.items():
            one, other = (
                [
                    {"seed": run["seed"], "splits": {"novel": {"error": error}}}
                    for run, error in zip(ours, of, strict=True)
                ]
                for of in zip(*errors, strict=True)
            )
            spreads = [spread(by_seed(runs)) for runs in (one, other)]
            lines.append([name, way, *spreads, compared(one, other)])
    headings = ["set, and how `qcn` was trained", "counted", "`qcn`", "`cnn-small`", "as wrong as `qcn`"]
    if not lines:
        return ""
    chose = "\n".join(said)
    return f"""
On novel viewpoints, by the seeds that both have. At an equal familiar (or training) error the network that ends with
the larger one counts as it ends, and the other at the first epoch at which its own is no larger. The training error is
counted while weights and images vary, so it is seldom 0.

{table(headings, lines)}

{chose}
"""


def _what_matching_chose(name: str, word: str, by: str, found: Sequence[tuple[Look, Look, bool]]) -> str:
    same = [one[by] for one, _, chose in found if not chose]
    larger = [max(one[by], other[by]) for one, other, chose in found if chose]
    parts = []
    if same:
        parts.append(
            f"in {len(same)} of {len(found)} pairs both end with the same error "
            f"({_range(same)} %), matching chooses nothing, and the last epoch of both counts"
        )
    if larger:
        parts.append(f"in {len(larger)} of {len(found)} one is taken back to an earlier epoch, at {_range(larger)} %")
    return f"- {name}, {word} error: {'; '.join(parts)}."


def _range(errors: Sequence[float]) -> str:
    low, high = (f"{100 * error:.2f}" for error in (min(errors), max(errors)))
    return low if low == high else f"{low} to {high}"


def section(record: dict[str, Any], source: str) -> str:
    """Two ways of counting, for docs/results.md."""
    return f"""## Two ways of counting

The paper's figures on novel viewpoints are the best of many looks: its code keeps the network with the least *test*
error, and compares networks once their accuracy on familiar views is equal. Ours are of the checkpoint chosen on
validation, and the test views are looked at once. Here some rows were trained again with a look at the test views
after every epoch, so that both can be counted. Nothing else on this page was chosen by these looks. Error in per
cent, mean ± standard deviation (runs). {source}: `python benchmarks/looks.py`.

{every_row(record["results"])}

The best of many looks is not an error that a user would see: in practice nobody has the labels to choose it.
{rivals(record["results"])}
"""
