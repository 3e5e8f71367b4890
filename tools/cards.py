"""Model cards: what is known of a network that ships. `ship_model.py` writes them into models/NAME: card.json, and
card.md, which is `text` of it and what `qcn models NAME` prints."""

from dataclasses import dataclass
from pathlib import Path

from qcn.direction import DirectionErrors
from qcn.errors import UsageError
from qcn.intervals import ErrorRate
from qcn.names import CARD
from qcn.networks.confidence import Known
from qcn.storage import records


@dataclass(frozen=True)
class CardData:
    """What the network was trained on. `sha256` is of the training images and labels, as in run.json."""

    name: str
    summary: str
    terms: str
    train: int
    validation: int
    sha256: str


@dataclass(frozen=True)
class Seeds:
    """The error over all seeds of the recipe that are on record: on "novel" where there is such a split, else "test".

    `better` is how many of the runs have a smaller validation error than the one that ships.
    """

    split: str
    seeds: int
    mean: float
    deviation: float
    better: int


@dataclass(frozen=True)
class Card:
    """One network. Errors are shares of the images of a split, of the weights that were chosen on validation.

    parameters         of the network
    weights            the file that training left, in models/runs/NAME, with its size and hash; empty: it does not ship
    recipe             the commands that trained it, one per line
    trained, measured  when, where and by which versions
    errors             by split
    directions         by split, how far directions of view are off; empty if the network has none
    calibration_error  the expected one, of the validation images at this temperature
    known              when an answer counts as known; None: always
    seeds              None where only one seed is on record
    """

    name: str
    model: str
    parameters: int
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    data: CardData
    recipe: str
    seed: int
    epoch: int
    trained: str
    measured: str
    validation_error: float
    errors: dict[str, ErrorRate]
    directions: dict[str, DirectionErrors]
    temperature: float
    calibration_error: float
    known: Known | None
    seeds: Seeds | None
    limits: tuple[str, ...]
    weights: str
    bytes: int
    sha256: str


def load_card(folder: Path) -> Card:
    """The card of the network in this folder."""
    path = folder / CARD
    if not path.is_file():
        raise UsageError(f"{folder} has no {CARD}: write it with `python tools/ship_model.py RUN NAME`")
    return records.load(Card, path)


def text(card: Card) -> str:
    """The card to read, in Markdown: what it is for and how good it is, then how it was made."""
    channels, height, width = card.image
    kind = {1: "grey", 2: "stereo pair, grey", 3: "colour"}.get(channels, f"{channels} channels")
    rows = "\n".join(
        f"| {split} | {rate.total:,} | {rate.wrong:,} | {100 * rate.error:.2f} % "
        f"| {100 * rate.low:.2f} to {100 * rate.high:.2f} % |"
        for split, rate in card.errors.items()
    )
    views = "`familiar` are new images from the viewpoints of training, `novel` are images from other viewpoints.\n"
    calibration = f"expected calibration error {100 * card.calibration_error:.2f} %"
    limits = "\n".join(f"- {limit}" for limit in card.limits)
    recipe = "\n".join(f"    {line}" for line in card.recipe.splitlines())
    return f"""# {card.name}

Tells apart: {", ".join(card.classes)}.

| split | images | wrong | error | 95 % interval (Wilson) |
|---|--:|--:|--:|--:|
{rows}

{views * ("novel" in card.errors)}{_directions(card)}The test images were not used to choose the recipe or the epoch.

## Limits

{limits}

## Network and data

| | |
|---|---|
| network | `{card.model}`, {card.parameters:,} parameters |
| images | {height}×{width}, {kind}; other sizes are fitted to this |
| data set | `{card.data.name}`: {card.data.summary} |
| terms of the data | {card.data.terms} |
| trained on | {card.data.train:,} images; {card.data.validation:,} more for validation |
| trained | {card.trained}; seed {card.seed}; epoch {card.epoch}, chosen on validation |
| validation error | {100 * card.validation_error:.2f} % |
{_seeds(card)}| probabilities | calibrated on the validation images: temperature {card.temperature:.3f}, {calibration} |
| unknown pictures | {_known(card)} |
| measured | {card.measured} |

## Recipe

{recipe}

On a GPU, two runs with the same seed differ slightly.

## Files

| | |
|---|---|
| bundle | `manifest.json` has the sha256 of its files |
| weights as trained | {_weights(card)}, {card.bytes:,} bytes |
| sha256 of the weights as trained | `{card.sha256}` |
| sha256 of the training images and labels | `{card.data.sha256}` |
"""


def _weights(card: Card) -> str:
    """Where the weights are that training left."""
    if not card.weights:
        return "too large to ship; the bundle is what `qcn calibrate` made of them"
    return f"`models/runs/{card.name}/{card.weights}` in the repository"


def _directions(card: Card) -> str:
    """A sentence for each split, where there are directions."""
    return "".join(
        f"It also says from where the object is seen: on `{split}` {angles.median:.1f}° off (median), within 15° for "
        f"{100 * angles.within_15:.0f} %, within 30° for {100 * angles.within_30:.0f} % and within the spread that it "
        f"names for {100 * angles.coverage:.0f} % of the images that it classifies right.\n"
        for split, angles in card.directions.items()
    )


def _known(card: Card) -> str:
    """Which answers count as known, and what else does."""
    if card.known is None:
        return "none: every answer counts as known"
    known = card.known
    return (
        f"an answer is known if its {known.score} is at least {known.threshold:.4g}, as {100 * known.keep:g} % of the "
        f"right answers on validation images are; so are {100 * known.false_positives:.0f} % of made-up pictures of "
        f"other things (AUROC {known.auroc:.3f})"
    )


def _seeds(card: Card) -> str:
    """The row on other runs of the recipe, where there are some."""
    if card.seeds is None:
        return ""
    result = card.seeds
    spread = f"{100 * result.mean:.2f} ± {100 * result.deviation:.2f} % (mean and standard deviation)"
    better = f"{result.better or 'none'} of them {'have' if result.better > 1 else 'has'} a smaller validation error"
    return f"| {result.seeds} seeds of this recipe | error on {result.split} {spread}; {better} |\n"
