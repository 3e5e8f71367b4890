"""Which of many training runs count, and how networks compare: the statistics of docs/results.md."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from measurements import Row, grouped, table

OURS = ("qcn", "qcn-deep")
RIVALS: dict[str, tuple[str, ...]] = {"cnn-small": OURS, "cnn": ()}  # and with which of ours they are compared
DEV = "viewpoints-dev"  # other toys, whose novel views may be looked at


class Recipe(NamedTuple):
    """The settings that averaged runs share: all but the seed. `more` are those that differ from the preset."""

    dataset: str
    model: str
    loss: str
    lr: float
    augment: str
    smoothing: float
    epochs: int
    batch_size: int
    more: tuple[tuple[str, str], ...]

    @property
    def varied(self) -> str:
        """How images are varied, and what else is not as usual."""
        smoothing = [f"smoothing {self.smoothing:g}"] if self.smoothing else []
        return ", ".join(
            [self.augment, *smoothing, *(f"{name.replace('_', ' ')} {value}" for name, value in self.more)]
        )


# Settings that a result has only if they are not the preset's.
MORE = ("weight_decay", "iterations", "mode", "schedule", "margin", "clip", "ema", "teachers")

# What the first table asks: the set, and in words.
QUESTIONS = {
    "viewpoints-azimuth-pooled": "known toys from new azimuths",
    "viewpoints-elevation-pooled": "known toys from new elevations",
    "viewpoints-azimuth": "new toys from new azimuths",
    "viewpoints-elevation": "new toys from new elevations",
    "coil20-azimuth": "photographs, known objects from new azimuths",
    "mnist": "digits",
    "fashion-mnist": "garments",
    "cifar10": "photographs of ten kinds",
}


def recipe(row: Row) -> Recipe:
    varied = row.get("augment", "light"), row.get("label_smoothing", 0.0)
    more = tuple((name, _text(row[name])) for name in MORE if name in row)
    return Recipe(row["dataset"], row["model"], row["loss"], row["lr"], *varied, row["epochs"], row["batch_size"], more)


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def error_of(row: Row) -> float:
    """The error, in per cent, that a run is compared by: on novel viewpoints, or on the test split."""
    return 100 * (row["splits"].get("novel") or row["splits"]["test"])["error"]


def by_recipe(rows: Sequence[Row]) -> dict[Recipe, list[Row]]:
    """The runs of each recipe, QCN first in each set."""
    in_order = sorted(rows, key=lambda row: (row["dataset"], row["model"] != "qcn", row["model"], *recipe(row)[2:]))
    return grouped(in_order, recipe)


def choose(rows: Sequence[Row], dataset: str, model: str) -> list[Row]:
    """The runs of the recipe with the least validation error, on the average; of equal ones, that with most runs.

    Validation images show familiar views, and say nothing of novel ones. Where a set asks for those, the recipe counts
    that has the least error on the novel views of other toys; of a model that was not tried there, one whose images are
    varied as the best there.
    """
    groups = {key: of for key, of in by_recipe(rows).items() if (key.dataset, key.model) == (dataset, model)}
    if any("novel" in row["splits"] for of in groups.values() for row in of):
        groups = _best_elsewhere(groups, rows)
    by_validation = [(statistics.mean(row["validation_error"] for row in of), -len(of)) for of in groups.values()]
    return list(groups.values())[by_validation.index(min(by_validation))] if groups else []


def _best_elsewhere(groups: dict[Recipe, list[Row]], rows: Sequence[Row]) -> dict[Recipe, list[Row]]:
    """The recipes that other toys favour; all of them where those say nothing."""
    tried = _tried_elsewhere(rows)
    known = {key: tried[same] for key in groups if (same := _anywhere(key)) in tried}
    if known:
        best = min(known, key=lambda key: known[key])
        return {best: groups[best]}
    augment = min(tried, key=lambda key: tried[key]).augment if tried else None
    return {key: of for key, of in groups.items() if key.augment == augment} or groups


def _tried_elsewhere(rows: Sequence[Row]) -> dict[Recipe, float]:
    """The mean error on novel views of other toys, by what can be done alike with them."""
    return {_anywhere(key): mean_error(of) for key, of in by_recipe(rows).items() if key.dataset == DEV}


def _anywhere(key: Recipe) -> Recipe:
    """A recipe less what depends on the size of a set."""
    return key._replace(dataset="", epochs=0, batch_size=0)


def trained_alike(ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
    """Whether both saw images that were varied in the same way, and had the same teachers or none."""
    return len({(recipe(row).augment, tuple(row.get("teachers", ()))) for row in [*ours, *theirs]}) == 1


def error_text(rows: Sequence[Row]) -> str:
    """The mean error of runs of one recipe, and what in it a reader must know."""
    first = rows[0] if rows else {}
    teachers = first.get("teachers", ())
    notes = [{1: "taught", 2: "taught by two", 3: "taught by three"}[len(teachers)]] if teachers else []
    if iterations := first.get("iterations"):
        notes.append(f"{iterations} iteration{'s' if iterations > 1 else ''}")
    return ", ".join([spread(by_seed(rows)), *notes])


def by_seed(rows: Sequence[Row], error: Callable[[Row], float] = error_of) -> dict[int, float]:
    """The error at each seed; of several runs of one seed, their mean."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: statistics.mean(error(row) for row in rows if row["seed"] == seed) for seed in seeds}


def mean_error(rows: Sequence[Row]) -> float:
    """Over seeds."""
    return statistics.mean(by_seed(rows).values())


def spread(of_seeds: Mapping[int, float]) -> str:
    """Mean ± standard deviation (seeds)."""
    errors = list(of_seeds.values())
    if not errors:
        return ""
    if len(errors) == 1:
        return f"{errors[0]:.2f} (1 seed)"
    return f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f} ({len(errors)})"


def ratio_text(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """The error ratio rival ÷ ours, with p of a paired t-test over the seeds that both have."""
    says = f"{mean_error(theirs) / mean_error(ours):.2f}×"
    one, two = by_seed(ours), by_seed(theirs)
    pairs = [(one[seed], two[seed]) for seed in sorted(one.keys() & two.keys())]
    if len(pairs) < 3:
        return f"{says}, too few runs for a test"
    from scipy.stats import ttest_rel

    chance = float(ttest_rel(*zip(*pairs, strict=True)).pvalue)
    return f"{says}, p {'< 0.001' if chance < 0.001 else f'= {chance:.3f}'}"


def quality(rows: Sequence[Row], published: dict[str, Any]) -> str:
    """A table: the error of each network, its ratio to the rivals' error, and what others published."""
    lines = []
    for dataset, words in QUESTIONS.items():
        paper, capsules = published["paper"].get(dataset), published["capsules"].get(dataset)
        others = ["" if paper is None else f"{paper}", f"{capsules[0]}" if capsules else ""]
        cells = [error_text(choose(rows, dataset, model)) for model in OURS]
        for rival, compared_with in RIVALS.items():
            theirs = choose(rows, dataset, rival)
            cells += [error_text(theirs), *(fair_ratio(rows, dataset, model, theirs) for model in compared_with)]
        lines.append([f"{words} (`{dataset}`)", *cells, *others])
    headings = [f"`{model}`" for model in OURS]
    for rival, compared_with in RIVALS.items():
        headings += [f"`{rival}`", *(f"÷ `{model}`" for model in compared_with)]
    return table(["images", *headings, "the paper", "other capsules"], lines)


def fair_ratio(rows: Sequence[Row], dataset: str, model: str, theirs: Sequence[Row]) -> str:
    """The error ratio of networks trained alike; says so if that is not our best recipe."""
    ours = choose_alike(rows, dataset, model, theirs)
    if not theirs or not ours:
        return ""
    best = ours == choose(rows, dataset, model)
    return ratio_text(ours, theirs) + ("" if best else f" (trained as `{theirs[0]['model']}`: {error_text(ours)})")


def choose_alike(rows: Sequence[Row], dataset: str, model: str, theirs: Sequence[Row]) -> list[Row]:
    """Our network's best recipe if a rival was trained alike, or else the best of those that are alike."""
    best = choose(rows, dataset, model)
    if not theirs or trained_alike(best, theirs):
        return best
    return choose([row for row in rows if trained_alike([row], theirs)], dataset, model)


def ablations(rows: Sequence[Row]) -> str:
    """The paper's: what the network is without a part."""
    base = [row for row in rows if row["dataset"] == "viewpoints-azimuth-pooled" and row.get("augment") == "turned"]
    told = {
        "qcn": "`qcn`: two branches, 2 iterations, logistic activation",
        "qcn, iterations 1": "1 iteration",
        "qcn, iterations 3": "3 iterations",
        "qcn, mode unit": "unit activation, as the authors' code",
        "qcn-unbranched": "without branches (`qcn-unbranched`, 0.30 million parameters)",
    }
    lines = []
    for key, of in by_recipe(base).items():
        name = ", ".join([key.model, *(f"{name} {value}" for name, value in key.more)])
        if name in told:
            familiar = by_seed(of, lambda row: 100 * row["splits"]["familiar"]["error"])
            lines.append((list(told).index(name), [told[name], spread(familiar), spread(by_seed(of))]))
    return table(["network", "familiar", "novel"], [line for _, line in sorted(lines)])
