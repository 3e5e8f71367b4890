"""The tables of docs/results.md that say whether QCN is better, than what, and what a deployer asks. From JSON."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pages import RESULTS, ROOT, Row, columns, hundredths, read, table

from qcn.names import RUN

OURS = ("qcn", "qcn-deep")
RIVALS = {"cnn-small": OURS, "cnn": OURS[:1]}  # and with which of ours they are compared
DEV = "viewpoints-dev"  # other toys, whose novel views may be looked at


class Recipe(NamedTuple):
    """What runs must have in common to be averaged: all but the seed. `more` is what is not as the preset has it."""

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
    "svhn": "house numbers",
    "smallnorb-azimuth-pooled": "photographed toys from new azimuths",
}
UNAVAILABLE = {"svhn": "svhn", "smallnorb-azimuth-pooled": "smallnorb"}  # and what fetches each


def recipe(row: Row) -> Recipe:
    varied = row.get("augment", "light"), row.get("label_smoothing", 0.0)
    more = tuple((name, _told(row[name])) for name in MORE if name in row)
    return Recipe(row["dataset"], row["model"], row["loss"], row["lr"], *varied, row["epochs"], row["batch_size"], more)


def _told(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def asked(row: Row) -> float:
    """The error, in per cent, that a run is compared by: on novel viewpoints, or on the test split."""
    return 100 * (row["splits"].get("novel") or row["splits"]["test"])["error"]


def by_recipe(rows: Sequence[Row]) -> dict[Recipe, list[Row]]:
    """The runs of each recipe, QCN first in each set."""
    groups: dict[Recipe, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["dataset"], row["model"] != "qcn", row["model"], *recipe(row)[2:])):
        groups.setdefault(recipe(row), []).append(row)
    return groups


def chosen(rows: Sequence[Row], dataset: str, model: str) -> list[Row]:
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


def not_favoured(rows: Sequence[Row]) -> str:
    """In words, which networks were not trained on a set as other toys favour; nothing if all were."""
    favoured = {}
    for key in sorted(tried := _tried_elsewhere(rows), key=lambda key: tried[key]):
        favoured.setdefault(key.model, key)
    lines = []
    for dataset, model in ((dataset, model) for dataset in QUESTIONS for model in favoured):
        runs = chosen(rows, dataset, model)
        if runs and "novel" in runs[0]["splits"] and _anywhere(recipe(runs[0])) != favoured[model]:
            lines.append(f"- `{dataset}`: `{model}` was not trained there with {favoured[model].varied}.")
    return "\n".join(["The recipe that other toys favour was not run everywhere:", "", *lines, "", ""]) if lines else ""


def trained_alike(ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
    """Whether both saw images that were varied in the same way, and had the same teachers or none."""
    return len({(recipe(row).augment, tuple(row.get("teachers", ()))) for row in [*ours, *theirs]}) == 1


def told_error(rows: Sequence[Row]) -> str:
    """The mean error of runs of one recipe, and what in it a reader must know."""
    first = rows[0] if rows else {}
    teachers = first.get("teachers", ())
    notes = [{1: "taught", 2: "taught by two", 3: "taught by three"}[len(teachers)]] if teachers else []
    if iterations := first.get("iterations"):
        notes.append(f"{iterations} iteration{'s' if iterations > 1 else ''}")
    return ", ".join([spread(by_seed(rows)), *notes])


def by_seed(rows: Sequence[Row], error: Callable[[Row], float] = asked) -> dict[int, float]:
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


def compared(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """How many times as wrong a rival is, and by a paired t-test over the seeds of both whether that is chance."""
    says = f"{mean_error(theirs) / mean_error(ours):.2f}×"
    one, two = by_seed(ours), by_seed(theirs)
    pairs = [(one[seed], two[seed]) for seed in sorted(one.keys() & two.keys())]
    if len(pairs) < 3:
        return f"{says}, too few runs for a test"
    from scipy.stats import ttest_rel

    chance = float(ttest_rel(*zip(*pairs, strict=True)).pvalue)
    return f"{says}, p {'< 0.001' if chance < 0.001 else f'= {chance:.3f}'}"


def headline(rows: Sequence[Row], published: dict[str, Any]) -> str:
    """Ten lines: is it better, by how much, than what?"""
    lines = []
    for dataset, words in QUESTIONS.items():
        paper, capsules = published["paper"].get(dataset), published["capsules"].get(dataset)
        others = ["" if paper is None else f"{paper}", f"{capsules[0]} ({capsules[1]})" if capsules else ""]
        cells = [told_error(chosen(rows, dataset, model)) for model in OURS]
        for rival, compared_with in RIVALS.items():
            theirs = chosen(rows, dataset, rival)
            cells += [told_error(theirs), *(fairly_compared(rows, dataset, model, theirs) for model in compared_with)]
        if not any(cells):
            cells[0] = "data not available where this was run" if dataset in UNAVAILABLE else "not run yet"
        lines.append([f"`{dataset}`: {words}", *cells, *others])
    headings = [f"`{model}`" for model in OURS]
    for rival, compared_with in RIVALS.items():
        headings += [f"`{rival}`", *(f"as wrong as `{model}`" for model in compared_with)]
    return table(["set", *headings, "the paper", "capsules"], lines)


def fairly_compared(rows: Sequence[Row], dataset: str, model: str, theirs: Sequence[Row]) -> str:
    """A rival beside our network, both trained alike; says so where that is not our network's best recipe."""
    ours = chosen_alike(rows, dataset, model, theirs)
    if not theirs or not ours:
        return ""
    best = ours == chosen(rows, dataset, model)
    return compared(ours, theirs) + ("" if best else f" (trained as `{theirs[0]['model']}`: {told_error(ours)})")


def chosen_alike(rows: Sequence[Row], dataset: str, model: str, theirs: Sequence[Row]) -> list[Row]:
    """Our network's best recipe if a rival was trained alike, or else the best of those that are alike."""
    best = chosen(rows, dataset, model)
    if not theirs or trained_alike(best, theirs):
        return best
    return chosen([row for row in rows if trained_alike([row], theirs)], dataset, model)


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


def one_iteration(rows: Sequence[Row]) -> str:
    """Runs with one iteration, as far as they went, beside the networks that ship, which have two."""
    lines = []
    for row in rows:
        run = json.loads((ROOT / "models" / "runs" / f"{row['dataset']}-qcn" / RUN).read_text(encoding="utf-8"))
        epoch = len(row["validation_errors"])
        errors = row["validation_errors"][-1], run["history"][epoch - 1]["validation_error"]
        lines.append(
            [f"`{row['dataset']}`", f"{epoch} of {row['epochs']}", *(f"{100 * error:.2f}" for error in errors)]
        )
    return table(["set", "epoch", "1 iteration", "2 iterations"], lines)


def clipped(rows: Sequence[Row]) -> str:
    """Cross-entropy on clipped logits beside that on the logits themselves, by row; and where both have the seed."""
    lines = []
    for name in dict.fromkeys(row["row"] for row in rows):
        before, after = (
            by_seed([row for row in rows if (row["row"], row["clipped"]) == (name, was)]) for was in (1, 0)
        )
        pairs = [after[seed] - before[seed] for seed in sorted(before.keys() & after.keys())]
        apart = ", ".join(f"{pair:+.2f}".replace("-", "−") for pair in pairs)
        lines.append([f"`{name}`", spread(before), spread(after), apart])
    return table(["row of benchmarks/reproduce.py", "clipped", "unclipped", "difference by seed"], lines)


def shapes(record: dict[str, Any]) -> str:
    """QCNs of one size and of several shapes, the best first."""
    forms = {
        "shape": "{shape}",
        "parameters": "{parameters:,}",
        "validation": lambda row: f"{100 * row['validation_error']:.2f}",
        "training": lambda row: f"{100 * row['train_error']:.2f}",
    }
    return columns(sorted(record["results"], key=lambda row: row["validation_error"]), forms)


def tried(rows: Sequence[Row]) -> str:
    """What was tried on other toys, to choose by."""
    lines = [
        [f"`{key.model}`", f"{key.loss}, {key.lr:g}", key.varied, str(key.epochs), spread(by_seed(of))]
        for key, of in by_recipe(rows).items()
        if key.dataset == DEV
    ]
    return table(["model", "loss, lr", "augmentation, and more", "epochs", "novel"], lines)


def components(rows: Sequence[Row]) -> str:
    """Three pose components against four, by activation and precision."""
    forms = {
        "components": "{components}",
        "activation": "{activation}",
        "precision": "{precision}",
        "largest difference": lambda row: "NaN" if row["largest"] is None else f"{row['largest']:.1g}",
        "same most active parent": lambda row: "NaN" if row["largest"] is None else f"{100 * row['agree']:.0f} %",
        "spread over parents": "{spread:.1g}",
    }
    return columns([row for row in rows if row["precision"] != "float64"], forms)


def not_better(rows: Sequence[Row], published: dict[str, Any]) -> str:
    """In words, where QCN is behind: behind a rival trained here, or behind what is published."""
    behind = []
    for dataset, model in ((dataset, model) for dataset in QUESTIONS for model in OURS):
        ours = chosen(rows, dataset, model)
        if not ours:
            continue
        error = mean_error(ours)
        names = []
        for rival in RIVALS:
            theirs = chosen(rows, dataset, rival)
            alike = chosen_alike(rows, dataset, model, theirs) or ours
            errors = [mean_error(of) for of in (theirs, alike) if of]
            if theirs and errors[0] <= errors[1]:
                note = "" if alike == ours else f" trained alike ({errors[1]:.2f})"
                names.append(f"`{rival}` ({errors[0]:.2f}){note}")
        paper, capsules = published["paper"].get(dataset), published["capsules"].get(dataset)
        names += [f"the paper ({paper})"] if paper is not None and paper <= error else []
        names += [f"{capsules[1]} ({capsules[0]})"] if capsules and capsules[0] <= error else []
        if names:
            behind.append(f"- `{dataset}`: `{model}` ({error:.2f}) is not better than {', '.join(names)}.")
    return "\n".join(behind) or "- Nowhere in this table."


def unavailable() -> str:
    """How to fill the rows whose data were not to be had."""
    return "\n".join(
        f"    qcn datasets fetch {fetched} && qcn train --dataset {dataset} --out RUN && qcn evaluate RUN"
        for dataset, fetched in UNAVAILABLE.items()
    )


def by_model(record: dict[str, Any]) -> dict[str, list[Row]]:
    """The networks of a robustness file, QCN first."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(record["results"], key=lambda row: (row["model"] != "qcn", row["model"])):
        groups.setdefault(row["model"], []).append(row)
    return groups


def mean_errors(rows: Sequence[Row], part: str, kind: str) -> list[float]:
    """Error in per cent at each severity, averaged over networks."""
    return [
        100 * statistics.mean(row[part][kind][step]["error"] for row in rows)
        for step in range(len(rows[0][part][kind]))
    ]


def robustness(record: dict[str, Any]) -> str:
    """One data set: errors under corruptions and attacks, calibration, rejection."""
    groups = by_model(record)
    lines = []
    for model, rows in groups.items():
        mean = f"{100 * statistics.mean(row['clean']['error'] for row in rows):.2f}"
        lines.append([f"`{model}` ({len(rows)})", hundredths(rows[0]["clean"]) if len(rows) == 1 else mean])
        for kind in record["amounts"]:
            lines[-1].append(" / ".join(f"{error:.1f}" for error in mean_errors(rows, "corruptions", kind)))
    first = table(["network (runs)", "clean", *record["amounts"]], lines)
    epsilons = record["epsilons"]
    lines = []
    for model, rows in groups.items():
        attacked = [row for row in rows if row["attacks"]]
        for attack in ("fgsm", "pgd") if attacked else ():
            errors = mean_errors(attacked, "attacks", attack)
            lines.append([f"`{model}`, {attack.upper()}", *(f"{error:.1f}" for error in errors)])
    second = table(["attack", *(f"{epsilon}/255" for epsilon in epsilons)], lines)
    lines = []
    for model, rows in groups.items():
        kept = {coverage: place for place, coverage in enumerate(rows[0]["rejection"]["coverage"])}
        cells = [100 * statistics.mean(row["calibration"]["error"] for row in rows)]
        cells += [100 * statistics.mean(row["rejection"]["error"][kept[at]] for row in rows) for at in (0.95, 0.9, 0.8)]
        cells += [100 * statistics.mean(row["rejection"]["aurc"] for row in rows)]
        lines.append([f"`{model}`", *(f"{cell:.2f}" for cell in cells)])
    refused = ["error, 5 % refused", "10 % refused", "20 % refused", "AURC"]
    third = table(["network", "ECE", *refused], lines)
    return f"{first}\n\n{second}\n\n{third}"


def robustness_files() -> dict[str, dict[str, Any]]:
    """What benchmarks/robustness.py has written, by data set."""
    records = [read(file.name) for file in sorted(RESULTS.glob("robustness-*.json"))]
    return {record["dataset"]: record for record in records}


def turning(record: dict[str, Any]) -> str:
    """How poses follow the azimuth."""
    words = {
        "once": "circular correlation with the azimuth",
        "twice": "with twice the azimuth",
        "explained": "share of the pose's variation that follows the azimuth",
    }
    lines = []
    for name, title in words.items():
        cells = []
        for which in ("trained", "untrained"):
            found = record["turning"][which][name]
            low, high = found["quartiles"]
            cells += [f"{found['mean']:.2f} ({low:.2f} to {high:.2f})", f"{found['chance']:.2f}"]
        lines.append([title, *cells])
    return table(["", "trained (middle half)", "by chance", "untrained (middle half)", "by chance"], lines)


def turning_answer(record: dict[str, Any]) -> str:
    """In words."""
    trained, untrained = (record["turning"][which] for which in ("trained", "untrained"))
    once, swing = trained["once"]["mean"], trained["swing_degrees"]["mean"]
    says = "Yes" if once >= 0.8 else "In part" if once >= 0.4 else "No"
    more = trained["explained"]["mean"] - trained["explained"]["chance"]
    follows = "It does change with the azimuth" if more >= 0.1 else "Nor does it change with the azimuth"
    before = untrained["swing_degrees"]["mean"]
    return (
        f"{says}: while an object turns all the way round, the pose of its class swings by {swing:.0f}° on average\n"
        f"({before:.0f}° before training), and its circular correlation with the azimuth is {once:.2f}\n"
        f"({trained['once']['chance']:.2f} by chance, {untrained['once']['mean']:.2f} before training). {follows}:\n"
        f"two harmonics of the azimuth explain {100 * trained['explained']['mean']:.0f} % of its variation, "
        f"{100 * trained['explained']['chance']:.0f} % by chance."
    )


def learned_rotors(record: dict[str, Any]) -> str:
    """Angles and axes by layer, beside an untrained network."""
    before = record["rotors"]["untrained"]
    forms = {
        "layer": "`{layer}`",
        "rotors": "{rotors:,}",
        "mean angle, trained / untrained": "{mean_degrees:.1f}° / {before[mean_degrees]:.1f}°",
        "mean of axes, trained / untrained": "{axis_resultant:.3f} / {before[axis_resultant]:.3f}",
    }
    trained = record["rotors"]["trained"].items()
    return columns([{"layer": layer, "before": before[layer], **found} for layer, found in trained], forms)
