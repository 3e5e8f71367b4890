"""docs/results.md: errors of networks, and of exports with faults planted in them."""

import statistics

import counting
import evidence
from evidence import asked, by_recipe, recipe
from pages import RESULTS, ROOT, Row, columns, hundredths, percent, read, source, table

from qcn.verify import words
from qcn.zoo import MODELS, create, parameter_count


def parameters() -> str:
    shapes = {"1 channel, 10 classes": (1, 10), "2 channels, 5 classes": (2, 5), "3 channels, 10 classes": (3, 10)}
    rows = [
        [f"`{name}`", *(f"{parameter_count(create(name, in_channels=c, classes=k)):,}" for c, k in shapes.values())]
        for name in MODELS
    ]
    return table(["model", *shapes], rows)


def larger_learning(record: Row) -> str:
    """The same toys at several resolutions."""
    forms = {
        "images": "{size}×{size}",
        "seed": "{seed}",
        "parameters": "{parameters:,}",
        "validation": lambda row: f"{100 * row['validation_error']:.2f}",
        "familiar": lambda row: percent(row["familiar"]),
        "novel": lambda row: percent(row["novel"]),
    }
    return columns(sorted(record["results"], key=lambda row: (row["size"], row["seed"])), forms)


def accuracies(rows: list[Row]) -> str:
    """Every run, those of one recipe together."""
    forms = {
        "set": "`{dataset}`",
        "model": "`{model}`",
        "loss, lr": "{loss}, {lr:g}",
        "augmentation": lambda row: recipe(row).varied,
        "seed": "{seed}",
        "epoch": "{epoch} of {epochs}",
        "validation": lambda row: f"{100 * row['validation_error']:.2f}",
        "test or familiar": lambda row: hundredths(row["splits"].get("test") or row["splits"]["familiar"]),
        "novel": lambda row: hundredths(row["splits"]["novel"]) if "novel" in row["splits"] else "",
        "commit": lambda row: row["machine"]["commit"][:7],
    }
    groups = by_recipe(rows).values()
    return columns((row for runs in groups for row in sorted(runs, key=lambda row: row["seed"])), forms)


def accuracy_by_recipe(rows: list[Row]) -> str:
    """The spread over the runs of each recipe, and what a run takes; the first runs did not keep their seconds."""
    lines = []
    for key, runs in by_recipe(rows).items():
        errors, seconds = [asked(row) for row in runs], [row["seconds"] for row in runs if "seconds" in row]
        seeds = ", ".join(str(seed) for seed in sorted(row["seed"] for row in runs))
        between = f"{min(errors):.2f} to {max(errors):.2f}" if len(errors) > 1 else ""
        mean = f"{statistics.mean(seconds):.0f}" if seconds else ""
        told = [f"`{key.dataset}`", f"`{key.model}`", f"{key.loss}, {key.lr:g}", key.varied, str(key.epochs), seeds]
        lines.append([*told, evidence.spread(errors), between, mean])
    headings = ["set", "model", "loss, lr", "augmentation", "epochs", "seeds", "error", "range", "seconds a run"]
    return table(headings, lines)


def novel_viewpoints(record: Row) -> str:
    forms = {
        "model": "`{model}`",
        "loss": "{settings[loss]}",
        "learning rate": "{settings[lr]:g}",
        "seed": "{settings[seed]}",
        "parameters": "{parameters:,}",
        "training": "{seconds:.0f} s",
        "validation": lambda row: f"{100 * row['validation_error']:.2f}",
        "familiar": lambda row: percent(row["familiar"]),
        "novel": lambda row: percent(row["novel"]),
    }
    return columns(record["results"], forms)


def faults(record: Row) -> str:
    """What was said of planted faults."""
    forms = {
        "fault": "{fault}",
        "": "{status}",
        "by": lambda row: row["caught_by"].replace(": ", " of "),
        "first wrong": lambda row: f"`{row['place']}`" if row["place"] else "",
        "largest error, of what is allowed": lambda row: (
            words.share(float(row["share"])) if row["share"] is not None else ""
        ),
    }
    return columns(record["faults"], forms)


def half_statistics(rows: list[Row]) -> str:
    """In words, what became of routing statistics in half precision."""
    honest = [row for row in rows if row["network"] == "honest"]
    faulty = [row for row in rows if row["network"] != "honest"]
    passed, found = (sum(row["status"] == "passed" for row in honest), sum(row["status"] == "failed" for row in faulty))
    outputs = max(row["outputs"] for row in faulty)
    return (
        f"Statistics of routing in half precision, in {len(honest)} fp16 networks of different weights: {found} of\n"
        f"{len(faulty)} faulty graphs were found, although their answers are within {words.share(outputs)} of what is\n"
        f"allowed in fp16, and {passed} of {len(honest)} correct ones passed."
    )


def deployers() -> str:
    """What benchmarks/robustness.py found, by data set."""
    records = evidence.robustness_files()
    parts = [
        """## What a deployer asks

Test images made worse, in five severities each: rotation by 10° to 50°, shift by 1 to 6 of 32 pixels both ways,
Gaussian noise of 0.04 to 0.25 (white is 1), blur of 0.5 to 2 pixels, contrast reduced to 75 to 10 %. Attacks change
each pixel by at most so much of 255, along the gradient of the network's own scores: FGSM in one step, PGD in twenty.
A stronger attack may exist, so their errors are a lower bound. ECE is the expected calibration error, in per cent. When
the least certain answers are refused, the error is that of the answers that are left; AURC is its mean over all shares
refused. AUROC is how well the largest probability / the largest activation tells test images from pictures of something
else: 0.5 is chance, 1 perfect. Errors in per cent, means over runs: `python benchmarks/robustness.py`.
"""
    ]
    for dataset, record in records.items():
        images = record["results"][0]["images"]
        attacked = max(row["attacked_images"] for row in record["results"])
        about = f"{images:,} test images, {attacked:,} of them attacked. {source(record)}."
        picture = ROOT / "docs" / "images" / f"robustness-{dataset}.png"
        shown = f"\n![the same as curves](images/{picture.name})\n" if picture.is_file() else ""
        parts.append(f"### {dataset}\n\n{about}\n\n{evidence.robustness(record)}\n{shown}")
    return "\n".join(parts) + "\n"


def turning_poses() -> str:
    """What benchmarks/poses.py found."""
    record = read("poses.json")
    return f"""## Does a pose turn with the object?

{evidence.turning_answer(record)}

`{record["network"]}`, {record["objects"]} objects and elevations of
`{record["dataset"]}`, {record["views"]} azimuths each: the pose of the true class against the azimuth, by circular
correlation without its sign (1: the pose turns evenly with the object, either way; 0: not at all). "By chance" is the
same with shuffled azimuths. {source(record)}:
`python benchmarks/poses.py`.

{evidence.turning(record)}

The rotors that it has learned, beside those of an untrained network (grey). An angle of 0° leaves a pose as it is. Axes
are shown as a density on the sphere; "mean of axes" is the length of their mean, 0 where no direction is preferred.

{evidence.learned_rotors(record)}

![correlations, angles and axes](images/poses.png)

"""


def two_ways() -> str:
    """What benchmarks/looks.py saw; nothing where it was not run."""
    if not (RESULTS / "looks-h200.json").exists():
        return ""
    record = read("looks-h200.json")
    return counting.section(record, source(record))


def page() -> str:
    """docs/results.md."""
    novel = read("novel-viewpoints-h200.json")
    demo = read("novel-viewpoints-demo.json")
    accuracy = read("accuracy-h200.json")
    ((gpu, torch),) = {
        (row["machine"]["gpu"].partition(",")[0], row["machine"]["torch"]) for row in accuracy["results"]
    }
    planted = read("faults.json")
    learnt = read("larger-images-learning.json")
    published = read("published.json")
    components = read("components.json")
    honest = planted["honest"]
    largest = ", ".join(f"{words.share(worst)} in {name}" for name, worst in honest["largest_share"].items())
    return f"""# Results

Written by `python benchmarks/tables.py` from the files in `benchmarks/results`; do not edit it by hand.

## Is it better?

Error in per cent on novel viewpoints, or on the test split where a set has none: mean ± standard deviation (runs).
"As wrong as `qcn`" is how many times as often a rival errs: above 1× QCN is better. p is of a paired t-test over the
seeds that both have. `qcn` has 0.19 million parameters, `cnn-small`, a residual CNN, the same within a tenth, `cnn`
4.25 million. Of several recipes the one with the least validation error counts. Where a set asks for novel views, which
validation images do not show, it is the one with the least error on the novel views of [other toys](#what-was-tried).
The test splits chose nothing. "Taught" networks learned the answers of a CNN of 2.8 million parameters, `cnn-wide`,
beside the labels; iterations are of routing, 2 where none are named. Rivals are compared where their images were varied
alike and both were taught, or neither. The last two columns are published figures: the paper's own QCN, and the best
capsule network of at most 330 thousand parameters.

{evidence.headline(accuracy["results"], published)}

QCN is not better here:

{evidence.not_better(accuracy["results"], published)}

The paper's novel viewpoints are photographed toys, and its figures the best of many looks at the test views: ours are
rendered toys, one look, so the two cannot be compared. All runs with their intervals: [Accuracy](#accuracy). SVHN and
smallNORB could not be had where this was run. One command fills each row:

{evidence.unavailable()}

Where the errors are: by azimuth, on `viewpoints-azimuth-pooled` (`python benchmarks/figures.py`).

![error by azimuth, QCN beside its rivals](images/azimuths.png)

## Accuracy

Every recipe that was trained, by `python benchmarks/reproduce.py` with preset `best` and what the table says: the error
on novel viewpoints, or on the test split where there are none, in per cent, mean ± standard deviation (runs). Of each
run the checkpoint counts that was best on the validation split, and the test splits were looked at once. In the pooled
protocol of the paper's code "familiar" and "novel" show the objects that were trained on, and "novel" shows them from
new azimuths or elevations. Seeds that stand twice were trained at two commits whose networks, data and recipe are the
same: on a GPU a seed does not fix the result, and the difference shows how far. Up to three runs shared the GPU, so the
seconds of a run alone are fewer. {accuracy["date"]}, {gpu}, torch {torch}:

{accuracy_by_recipe(accuracy["results"])}

<details>
<summary>Each of the {len(accuracy["results"])} runs, with its 95 % interval over images</summary>

{accuracies(accuracy["results"])}

</details>

### What was tried

On `{evidence.DEV}`: the same protocol as `viewpoints-azimuth-pooled`, but other toys, so that its novel views may be
looked at. One run each; error in per cent. `turned` is rotation by up to 30° and scale by up to 15 %.

{evidence.tried(accuracy["results"])}

### The paper's ablations

`viewpoints-azimuth-pooled`, 30 epochs, spread loss, `--augment turned`; error in per cent.

{evidence.ablations(accuracy["results"])}

So a second round of routing does not help on these toys, and the branches save parameters, not errors. (The runs
are few, and the choice of two rounds was not made by them.) On photographs it does help. Runs with one iteration were
stopped when that was plain; validation error in per cent, beside the network that ships, of the same recipe and seed:

{evidence.one_iteration(read("one-iteration-h200.json")["results"])}

Three pose components or four: {components["windows"]} random windows of {components["children"]} children and
{components["parents"]} parents, routed with the three components that a pure quaternion has, and with all four, as in
the authors' code, where the fourth is rounding and its variance goes through a logarithm. Activations beside those in
float64. {source(components)}: `python benchmarks/components.py`.

{evidence.components(components["results"])}

{two_ways()}{deployers()}{turning_poses()}## Other capsule networks

Error in per cent with its 95 % interval after {novel["epochs"]} epochs of `{novel["dataset"]}`, in the plain protocol:
five training instances of each category at six azimuths; "familiar" and "novel" both show the other five instances, so
they ask for new objects, and "novel" for new azimuths too. One run each, last epoch, batches of
{novel["results"][0]["settings"]["batch_size"]}, the preset `best` but for what the table says. {source(novel)}:
`python benchmarks/novel_viewpoints.py`, one `--recipe` per row.

{novel_viewpoints(novel)}

What this shows, and what it does not: on this rendered set, with this little training, the CNN, which has 23 times the
parameters, is ahead of every capsule network. Those learn their training instances (the validation column
shows this) and carry less over to new ones; a larger learning rate and the spread loss help QCN a good deal. These are
not the paper's figures: its tables are on smallNORB, with 300 epochs, and its code shows the same instances on both
sides (our `-pooled` protocol): see [Accuracy](#accuracy), where QCN is ahead of the CNN. smallNORB has not been run.

## The demo set

The same on `{demo["dataset"]}`, {demo["epochs"]} epochs, batches of
{demo["results"][0]["settings"]["batch_size"]}, in the pooled protocol: known objects, "novel" from new azimuths. The
first row is what `make demo` trains. {source(demo)}.

{novel_viewpoints(demo)}

## Parameters

{parameters()}

`em` with the 256 stem channels that the paper gives it on CIFAR-10 has
{parameter_count(create("em", in_channels=3, classes=10, stem=256)):,}. All are counted for images of 32×32.

## Networks for larger images

They learn about as well as the network for 32×32: `{learnt["settings"]["model"]}` on the toys of `viewpoints-demo`,
rendered in one, two and three times the resolution. Objects, views and split are the same; {learnt["epochs"]} epochs
with the settings of `make demo`, last epoch. Error in per cent with its 95 % interval; chance is 80. {source(learnt)}:
`python benchmarks/larger_images.py learning`.

{larger_learning(learnt)}

## Planted faults

Each was planted in a bundle of a small network whose hashes were corrected afterwards, so that only `qcn verify-parity`
could find it: `python benchmarks/faults.py`. "First wrong" is the place that it names; a file that does not run has
none. {source(planted)}.

{faults(planted)}

False alarms: of {honest["networks"]} correct fp32 exports, each of different weights, {honest["alarms"]} failed. Their
largest errors were {largest}, of what is allowed.

{half_statistics(planted["half"])}
"""
