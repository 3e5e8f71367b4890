"""`qcn evaluate --unknown`: how many pictures of something else a network calls known, and how well it tells them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import Fit, fit, read_picture
from qcn.data.imageset import ImageSet
from qcn.data.registry import DATASETS, dataset_name, load
from qcn.errors import UsageError
from qcn.evaluate.networks import Network
from qcn.evaluate.rates import Answers, Unknown
from qcn.intervals import ErrorRate
from qcn.networks.confidence import SCORES, auroc
from qcn.predict.sources import files
from qcn.terminal.progress import doing
from qcn.terminal.text import counted

AT_ONCE = 256  # pictures in memory
NO_THRESHOLD = (
    "the network calls every picture known, because no threshold was fitted: leave out --unknown, or train a network "
    "with `qcn train`, which fits one if there are enough validation images"
)

Pixels = NDArray[np.uint8]


def measure_unknown(
    network: Network, sources: Sequence[str], data_dir: Path, splits: Mapping[str, Answers]
) -> dict[str, tuple[Unknown, ...]]:
    """By split, how the answers to it compare with those to the pictures of each source, a folder or data set."""
    result: dict[str, tuple[Unknown, ...]] = dict.fromkeys(splits, ())
    known = network.known
    if known is None:
        return result

    def scores(answers: Answers) -> NDArray[np.float64]:
        return SCORES[known.score](answers.logit, network.temperature)

    tests = {split: scores(answers) for split, answers in splits.items()}
    for source in sources:
        name = dataset_name(source)
        theirs = np.concatenate([scores(answers) for answers in answers_to(network, source, data_dir)])
        called_known = ErrorRate.of(int((theirs >= known.threshold).sum()), len(theirs))
        for split, ours in tests.items():
            result[split] += (Unknown(name, called_known, auroc(ours, theirs)),)
    return result


def answers_to(network: Network, source: str, data_dir: Path) -> Iterator[Answers]:
    """The answers to all pictures of a folder, or of the test splits of a data set, AT_ONCE at a time."""
    total, pictures = _pictures(source, data_dir)
    what = f"{dataset_name(source)}, {counted(total, 'unknown picture')}, by {network.backend}"
    for start in range(0, total, AT_ONCE):
        several = [fitted(one, network.image, network.preprocessing.fit) for one in islice(pictures, AT_ONCE)]
        doing(what, start, of=total)
        yield network.answers(
            ImageSet(np.stack(several), np.zeros(len(several), np.int64), network.classes), lambda done: None
        )


def _pictures(source: str, data_dir: Path) -> tuple[int, Iterator[Pixels]]:
    """How many there are, and each [H, W, C]."""
    if source in DATASETS:
        tests = load(source, data_dir).tests.values()
        return sum(map(len, tests)), (image.transpose(1, 2, 0) for test in tests for image in test.images)
    if not Path(source).is_dir():
        raise UsageError(f"--unknown names a folder of pictures or a data set, and '{source}' is neither")
    return sum(1 for _ in files(source)), map(read_picture, map(Path, files(source)))


def fitted(picture: Pixels, image: tuple[int, int, int], how: Fit) -> Pixels:
    """A picture [H, W, C] as an image [C, H, W] of this shape. Both eyes of a stereo network see the same picture."""
    pair = picture.shape[2] == 2
    if image[0] == 2 and not pair:
        return np.repeat(fit(picture, (1, *image[1:]), how), 2, axis=0)
    return fit(picture[..., :1] if pair and image[0] != 2 else picture, image, how)
