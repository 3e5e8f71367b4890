"""docs/results.md: errors of networks, and of exports with faults planted in them."""

import statistics

import choosing
import counting
import evidence
import one_answer
import unknown
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
        "least validation": lambda row: f"{100 * row['validation_error']:.2f}",
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
        lines.append([*told, evidence.spread(evidence.by_seed(runs)), between, mean])
    headings = ["set", "model", "loss, lr", "augmentation", "epochs", "seeds", "error", "range", "seconds per run"]
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
        "largest error, of the tolerance": lambda row: (
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

Test images are degraded in five severities each: rotation by 10° to 50°, shift by 1 to 6 of 32 pixels both ways,
Gaussian noise of 0.04 to 0.25 (white is 1), blur of 0.5 to 2 pixels, contrast reduced to 75 to 10 %. Attacks change
each pixel by at most the given number of 255 steps, along the gradient of the network's own scores: FGSM in one step,
PGD in twenty. A stronger attack may exist, so their errors are a lower bound. ECE is the expected calibration error,
in per cent. If the least certain answers are rejected, the error is that of the remaining answers; AURC is its mean
over all rejection rates. Errors are in per cent, means over runs. That of one run without corruption has its 95 %
interval; of larger errors the interval is wider, and more so under attack, where there are fewer images: 100 images
tell 50 % from 40 to 60 %. `python benchmarks/robustness.py`.
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

`{record["network"]}`, {record["objects"]} objects and elevations of `{record["dataset"]}`, {record["views"]} azimuths
each: the absolute circular correlation of the pose of the true class with the azimuth (1: the pose turns evenly with
the object, in either direction; 0: not at all). "By chance" is the same with shuffled azimuths. {source(record)}:
`python benchmarks/poses.py`.

{evidence.turning(record)}

The rotors that it has learned, compared with those of an untrained network (grey). An angle of 0° leaves a pose
unchanged. Axes are shown as a density on the sphere; "mean of axes" is the length of their mean, 0 if no direction is
preferred.

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
    shapes = read("shapes-h200.json")
    choice = read("choosing.json")
    honest = planted["honest"]
    largest = ", ".join(f"{words.share(worst)} in {name}" for name, worst in honest["largest_share"].items())
    return f"""# Results

Written by `python benchmarks/tables.py` from the files in `benchmarks/results`; do not edit it by hand.

## Is it better?

Error in per cent on novel viewpoints, or on the test split if a set has none: mean ± standard deviation (seeds); of two
runs with the same seed, their mean counts. "As wrong as `qcn`" is how many times as often a rival errs: above 1×, QCN
is better. p is from a paired t-test over the seeds that both have. `qcn`, the paper's network, has 0.19 million
parameters; `qcn-deep`, a QCN of [another shape](#another-shape), has no more; `cnn-small`, a residual CNN, has the same
within a tenth; `cnn` has 4.25 million.

Of several recipes, the one with the least validation error counts. Validation images show no novel views, so for sets
with novel views it is the recipe with the least error on the novel views of [other toys](#what-was-tried). No choice
was made on the test splits. "Taught" networks learned from the answers of `cnn-wide`, a CNN of 2.8 million
parameters, as well as from the labels; those "taught by two" also from those of a second `cnn-wide`, which was taught
by the first; those "taught by three" from three that saw their images varied in different ways. "Iterations" are those
of routing, 2 if none are named. Rivals are compared only with the same augmentation and the same teachers: if the best
recipes differ in these, with the best of ours that was trained as the rival. The last two columns are published
figures: the paper's own QCN, and the best capsule network of at most 330 thousand parameters.

{evidence.headline(accuracy["results"], published)}

{evidence.not_favoured(accuracy["results"])}QCN is not better here:

{evidence.not_better(accuracy["results"], published)}

The paper's novel viewpoints are photographed toys, and its figures are the best of many looks at the test views. Ours
are rendered toys and one look, so the two cannot be compared. All runs with their intervals are in
[Accuracy](#accuracy). SVHN and smallNORB could not be downloaded where this was run. One command fills each row:

{evidence.unavailable()}

Errors by azimuth on `viewpoints-azimuth-pooled` (`python benchmarks/figures.py`):

![error by azimuth, QCN beside its rivals](images/azimuths.png)

## Accuracy

Every recipe that was trained, by `python benchmarks/reproduce.py` with preset `best` and the settings in the table:
the error on novel viewpoints, or on the test split if there are none, in per cent, mean ± standard deviation (seeds).
For each run the checkpoint that was [chosen on the validation split](#which-epoch-is-best) counts, and the test splits
were looked at once. In the pooled protocol of the paper's code, "familiar" and "novel" show the objects that were
trained on, and "novel" shows them from new azimuths or elevations. A seed that appears twice was trained at two commits
with the same network, data and recipe: on a GPU a seed does not fix the result, and the difference shows by how much.
Up to six runs shared the GPU, so a run alone takes fewer seconds. Until {accuracy["date"]}, {gpu}, torch {torch}:

{accuracy_by_recipe(accuracy["results"])}

<details>
<summary>Each of the {len(accuracy["results"])} runs, with its 95 % interval over images</summary>

{accuracies(accuracy["results"])}

</details>

### What was tried

On `{evidence.DEV}`: the same protocol as `viewpoints-azimuth-pooled` with other toys, so that its novel views may be
used to choose. Error in per cent. `turned` is rotation by up to 30° and scale by up to 15 %.

{evidence.tried(accuracy["results"])}

On the sets without viewpoints the recipe with the least validation error is in the [first table](#is-it-better), and
all that were tried are under [Accuracy](#accuracy). A teacher and cutout help on photographs; on digits one teacher
does not help `qcn`, but three teachers help `qcn-deep`. They are three runs of `cnn-wide`, whose images were cut,
turned and bent; those of the network that they teach are cut. The one whose images were bent does not help alone. A
second teacher and twice as many epochs help `qcn-deep` on garments. Without teachers, turning digits does not help any
of three networks, and bending them (`elastic`) helps neither `qcn-deep` nor `cnn-wide`.

### Which epoch is best

Best is the last epoch whose validation error is within the 95 % interval of the least. Here
`qcn-tiny` learned from few images of a set, as from a user's folder, with a tenth of them for validation. The table
shows the error in per cent on a thousand other images at the epoch that a rule chooses, and the epoch: means of
{len(choice["results"]) // 4} runs. The gain is in points, over the first rule: mean ± standard error. No test image was
used. {source(choice)}: `python benchmarks/choosing.py`.

{choosing.compared(choice["results"])}

In {choosing.chose_last(choice["results"])} of these {len(choice["results"])} runs the rule chooses the last epoch.
So they show that it is better than the least error, not that it is better than the last. The runs above were trained
before this, with the least error, the last of equal ones; three on `coil20-azimuth` (commit 729873c) with the last
within one standard error, which was the same epoch.

### Another shape

More than half of a `qcn`'s parameters are rotors of 5×5 windows. Here its capsule layers have 3×3 windows, and the
residual blocks have what that saves: they are wider, or there are more of them. One run each with preset `best`; error
in per cent on the validation split of CIFAR-10 after {shapes["epochs"]} epochs (the mean of the last three), and in
training. {source(shapes)}: `python benchmarks/shapes.py`.

{evidence.shapes(shapes)}

So more blocks help, and wider ones do not. `qcn-deep` has four, which halve the image twice; its two capsule layers
route a tenth of the votes. In the [first table](#is-it-better) it errs less than `qcn` on photographs, garments and
novel elevations, and more on novel azimuths of known toys. On an x86-64 CPU it takes a third of the time
([speed.md](speed.md#by-instruction-set)).

### The paper's ablations

`viewpoints-azimuth-pooled`, 30 epochs, spread loss, `--augment turned`; error in per cent.

{evidence.ablations(accuracy["results"])}

So a second iteration of routing does not help on these toys, and the branches save parameters, not errors. (The runs
are few, and the number of iterations was not chosen by them.) On photographs a second iteration does help. Validation
error in per cent after the same epochs, beside the shipped network of the same recipe and seed; the run on `cifar10`
was stopped early:

{evidence.one_iteration(read("one-iteration-h200.json")["results"])}

### Logits, not clipped

Until 2026-11-18 the loss took the logit of a class back from its activation, clipped to 10⁻⁶ from 0 and 1. Beyond that
clip, a logit of ±13.8, no gradient flowed: an image that was wrong with confidence taught nothing. Now the routing
operator gives out the logit itself. Error on test images (of toys: novel azimuths) in per cent, mean ± standard
deviation (seeds); where a seed was trained several times, its mean. Runs of both kinds were trained side by side on one
H200, by one teacher, commits e6e57c5 and 1239118; beside them are clipped ones of before, and two more of digits. The
spread loss uses activations, clipped or not, so that its rows show what chance does.

{evidence.clipped(read("clip-h200.json")["results"])}

So photographs with a teacher gain, in each seed. Digits without a teacher lose a little, and toys change either way,
not by more than seeds do. Rows of QCNs in the tables above that were trained with cross-entropy before commit 1239118
had the clip.

### Components of a pose

Three pose components or four: {components["windows"]} random windows of {components["children"]} children and
{components["parents"]} parents, routed with the three components of a pure quaternion, and with all four, as in the
authors' code. There the fourth component is rounding noise, and its variance goes through a logarithm. Activations are
compared with those in float64. {source(components)}: `python benchmarks/components.py`.

{evidence.components(components["results"])}

{two_ways()}{deployers()}{one_answer.section()}{unknown.section()}
{turning_poses()}## Other capsule networks

Error in per cent with its 95 % interval after {novel["epochs"]} epochs of `{novel["dataset"]}`, in the plain
protocol: five training instances of each category at six azimuths; "familiar" and "novel" both show the other five
instances, so both test new objects, and "novel" also new azimuths. One run each, last epoch, batches of
{novel["results"][0]["settings"]["batch_size"]}, the preset `best` except for the settings in the table.
{source(novel)}: `python benchmarks/novel_viewpoints.py`, one `--recipe` per row.

{novel_viewpoints(novel)}

On this rendered set, with this little training, the CNN, which has 23 times the parameters, is ahead of every capsule
network. The capsule networks learn their training instances (see the validation column) but generalise less to new
ones. A larger learning rate and the spread loss help QCN a good deal. These are not the paper's figures: its tables
are on smallNORB, with 300 epochs, and its code has the same instances in training and test (our `-pooled` protocol):
see [Accuracy](#accuracy), where QCN is ahead of the CNN. smallNORB has not been run.

## The demo set

The same on `{demo["dataset"]}`, {demo["epochs"]} epochs, batches of
{demo["results"][0]["settings"]["batch_size"]}, in the pooled protocol: known objects, "novel" from new azimuths. The
first row is what `make demo` trains. {source(demo)}.

{novel_viewpoints(demo)}

## Parameters

{parameters()}

`em` with the 256 stem channels that the paper gives it on CIFAR-10 has
{parameter_count(create("em", in_channels=3, classes=10, stem=256)):,}. All counts are for images of 32×32.

## Networks for larger images

They learn about as well as the network for 32×32. The table shows `{learnt["settings"]["model"]}` on the toys of
`viewpoints-demo`, rendered at one, two and three times the resolution. Objects, views and split are the same;
{learnt["epochs"]} epochs with the settings of `make demo`, last epoch. Error in per cent with its 95 % interval;
chance is 80. {source(learnt)}: `python benchmarks/larger_images.py learning`.

{larger_learning(learnt)}

## Planted faults

Each fault was planted in a bundle of a small network, and the hashes were corrected afterwards, so that only
`qcn verify-parity` could find it: `python benchmarks/faults.py`. "First wrong" is the place that it names; a file
that does not run has none. {source(planted)}.

{faults(planted)}

False alarms: of {honest["networks"]} correct fp32 exports, each of different weights, {honest["alarms"]} failed. Their
largest errors, as a share of the tolerance, were {largest}.

{half_statistics(planted["half"])}
"""
