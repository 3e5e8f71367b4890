"""The plan of calls: every size that is deployed, each image alone, any order, often enough; and which were wrong."""

from itertools import islice

import numpy as np
import pytest

from qcn.export.bundle.manifest import Batch
from qcn.verify.parity.calls import CALLS, Call, Replies, call_plan, random_calls, which

IMAGES = 22
BATCHES = [Batch(1, 8, 64), Batch(1, 1, 1), Batch(4, 4, 4), Batch(2, 5, 7), Batch(1, 8, 200), Batch(16, 32, 64)]


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_size_that_is_deployed_is_run_and_every_image_in_it(batch: Batch) -> None:
    calls = call_plan(IMAGES, batch)
    assert len(calls) >= CALLS == 64
    assert all(batch.min <= call.size <= batch.max for call in calls)
    for size in (batch.min, batch.opt, batch.max):
        of_size = [call for call in calls if call.size == size]
        assert {row for call in of_size for row in call.rows} == set(range(IMAGES))
    assert calls[-1].size == batch.opt and calls[-1] in calls[:-1]  # asked twice: has it the same bits?
    assert call_plan(IMAGES, batch) == calls


def test_sizes_come_in_random_order_with_random_images() -> None:
    calls = call_plan(IMAGES, Batch(1, 8, 64))
    later = [call.size for call in calls[IMAGES + 4 :]]
    assert len(set(later)) > 6 and later != sorted(later) and max(later[:-1]) > 16
    steps = np.diff(later)
    assert (steps > 4).any() and (steps < -4).any()  # batches grow, and shrink
    assert sum(call.size for call in calls) < 300


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_in_a_soak_every_size_has_its_turn_first(batch: Batch) -> None:
    sizes = range(batch.min, batch.max + 1)
    calls = list(islice(random_calls(IMAGES, batch, 7), 3 * len(sizes) + 100))
    first = [call.size for call in calls[: len(sizes)]]
    assert sorted(first) == list(sizes) and (first != sorted(first) or len(sizes) < 8)
    assert {call.size for call in calls[len(sizes) :]} <= set(sizes)
    assert {row for call in calls for row in call.rows} == set(range(IMAGES))
    assert calls == list(islice(random_calls(IMAGES, batch, 7), len(calls)))
    assert calls != list(islice(random_calls(IMAGES, batch, 8), len(calls)))


def calls_of(*sizes: int) -> tuple[Call, ...]:
    return tuple(
        Call(tuple((3 * number + place) % IMAGES for place in range(size))) for number, size in enumerate(sizes)
    )


def test_what_wrong_calls_have_in_common_is_said() -> None:
    calls = calls_of(1, 1, 8, 64, 5, 1, 64, 8)

    def said(*wrong: int, place: int | None = None) -> str:
        return which(
            calls, [(range(calls[n].size) if place is None else [place]) if n in wrong else () for n in range(8)]
        )

    assert said() == "" and said(*range(8)) == ""
    assert said(0, 1, 5) == "for images that are given alone; first at call 1, a batch of 1"
    assert said(3, 6) == "in batches of 64; first at call 4, a batch of 64"
    assert said(2, 3, 6, 7) == "in batches of 8 or more; first at call 3, a batch of 8"
    assert said(5, 6, 7) == "from call 6 of 8 on"
    assert said(3, 4) == "in 2 of 8 calls; first at call 4, a batch of 64"
    assert said(2, 3, 4, 6, 7, place=2) == "at place 3 of a batch; first at call 3, a batch of 8"
    image = calls[0].rows[0]
    always = [[place for place, row in enumerate(call.rows) if row == image] for call in calls]
    assert which(calls, always) == ""  # it is the image, and not the call


def test_the_worst_answer_to_each_image_counts() -> None:
    exact = {"logit": np.zeros((3, 2))}
    answers = [np.array(rows, np.float32) for rows in ([[0, 0], [0, 1]], [[3, 0]], [[np.nan, 0], [0, 2]])]
    replies = Replies((Call((0, 1)), Call((0,)), Call((2, 1))), tuple({"logit": one} for one in answers))
    worst = replies.worst(exact, {"logit": 1.5})["logit"]
    np.testing.assert_array_equal(worst, [[3, 0], [0, 2], [np.nan, 0]])
    assert replies.first_wrong_size(exact, {"logit": 1.5}) == 1
    assert replies.first_wrong_size(exact, {"logit": 0.5}) == 2
    assert replies.deterministic()
    again = Replies((Call((0, 1)), Call((0, 1))), ({"logit": answers[0]}, {"logit": answers[0] + 1}))
    assert not again.deterministic()
