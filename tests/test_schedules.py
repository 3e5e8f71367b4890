"""The learning rate and the margin over a run."""

import pytest

from qcn.train.schedules import learning_rate, spread_margin


def test_one_cycle_rises_for_fifteen_percent_and_falls_to_nothing() -> None:
    cycle = [learning_rate("one-cycle", 3e-3, step, 1000) for step in range(1000)]
    assert max(cycle) == pytest.approx(3e-3) and cycle.index(max(cycle)) == 150
    assert cycle[0] < 3e-3 / 20 and cycle[-1] < 3e-3 / 1000
    assert cycle[:151] == sorted(cycle[:151]) and cycle[150:] == sorted(cycle[150:], reverse=True)


def test_the_papers_decay() -> None:
    assert learning_rate("exponential", 3e-3, 0, 1) == 3e-3
    assert learning_rate("exponential", 3e-3, 20_000, 1) == pytest.approx(0.96 * 3e-3)


def test_the_papers_margin() -> None:
    assert spread_margin("paper", 0, 1) == pytest.approx(0.2 + 0.79 * 0.0179862, abs=1e-6)
    assert spread_margin("paper", 200_000, 1) == pytest.approx(0.2 + 0.79 / 2)
    assert (
        spread_margin("paper", 302_000, 1)
        < 0.9
        <= spread_margin("paper", 304_000, 1)
        == spread_margin("paper", 10**7, 1)
    )


def test_the_scaled_margin_reaches_its_end_at_sixty_percent() -> None:
    assert spread_margin("scaled", 0, 100) == pytest.approx(0.2)
    assert spread_margin("scaled", 30, 100) == pytest.approx(0.55)
    assert spread_margin("scaled", 60, 100) == spread_margin("scaled", 100, 100) == pytest.approx(0.9)
