"""How Triton batches requests, chosen from measured latencies: what a batch saves, and how long to wait for one."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PAYS = 0.95  # of the time per image in every smaller batch: what a preferred batch takes at most
MOST_INSTANCES = 4
MEASURE = "qcn benchmark BUNDLE --batch 1 --batch 8 --batch 64 --json FILE"


@dataclass(frozen=True)
class BatchTime:
    """Milliseconds of one inference: with transfers to and from a GPU, and without (None where there are none)."""

    batch: int
    latency_ms: float
    compute_ms: float | None = None

    @property
    def per_image(self) -> float:
        return self.latency_ms / self.batch


@dataclass(frozen=True)
class FileTimes:
    """A file of a network in a backend of `qcn benchmark`, on one device, in several batches; both by their sha256."""

    network: str
    sha256: str
    file: str
    device: Literal["cpu", "cuda"]
    timed: tuple[BatchTime, ...]

    @property
    def smallest(self) -> int:
        """The smallest batch."""
        return min(timed.batch for timed in self.timed)

    @property
    def best(self) -> float:
        """Milliseconds per image in the batch that takes the fewest."""
        return min(one.per_image for one in self.timed)


@dataclass(frozen=True)
class Latencies:
    """Measured latencies, and the file that they were read from."""

    file: Path
    measured: tuple[FileTimes, ...]


@dataclass(frozen=True)
class Batching:
    """The batching in a network's configuration.

    preferred    batches that take less time per image than every smaller one that was measured
    delay_us     microseconds that a request waits for others
    batches      whether requests are put into one batch at all
    measured     whether it was chosen from latencies
    instances    copies of the network that run at the same time
    words        why so, for people; lines
    """

    preferred: tuple[int, ...]
    delay_us: int
    batches: bool
    measured: bool
    instances: int
    device: Literal["cpu", "cuda"]
    words: tuple[str, ...]


def plain(device: Literal["cpu", "cuda"]) -> Batching:
    """The batching without a measurement: one copy; requests that are waiting already share a batch, none waits."""
    words = "not measured: what is waiting already is put into one batch, and no request waits for others"
    return Batching((), 0, True, False, 1, device, (words,))


def choose_batching(measured: FileTimes, most: int) -> Batching:
    """Choose the batching from latencies, for batches of up to `most`.

    A batch is preferred where it takes less time per image than every smaller one. A request waits no longer than the
    best batch saves per image: never longer than one image alone takes. On a GPU as many copies run as keep it busy
    while others are transferred; on a CPU one, since it was measured with all cores.
    """
    timed = [one for one in sorted(measured.timed, key=lambda one: one.batch) if one.batch <= most]
    words = [f"measured: {'; '.join(f'{_ms(one.latency_ms)} for {one.batch}' for one in timed)}"]
    preferred = tuple(
        one.batch
        for place, one in enumerate(timed)
        if place and all(one.per_image <= PAYS * smaller.per_image for smaller in timed[:place])
    )
    delay = 0
    if preferred:
        alone, best = timed[0], min(timed, key=lambda one: one.per_image)
        saved = alone.per_image - best.per_image
        delay = max(1, round(1e3 * saved))
        words.append(f"a batch of {best.batch} saves {_ms(saved)} per image: a request waits that long for others")
    elif len(timed) > 1:
        words.append("no larger batch takes less time per image: requests are not put into batches")
    else:
        words.append(f"one batch tells nothing of others: {MEASURE}")
    # As many copies as there are computations in one latency, of the batch where that is most; a tenth over is none.
    shares = [one.latency_ms / one.compute_ms for one in timed if one.compute_ms and measured.device == "cuda"]
    instances = min(MOST_INSTANCES, max(1, math.ceil(max(shares, default=1.0) - 0.1)))
    batches = bool(preferred) or len(timed) == 1
    return Batching(preferred, delay, batches, True, instances, measured.device, tuple(words))


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
