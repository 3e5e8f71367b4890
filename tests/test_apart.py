"""Benchmarks survive what they measure."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from apart import Died, apart


def test_a_variant_that_crashes_takes_only_its_own_row_with_it() -> None:
    with pytest.raises(Died, match="ended by SIGABRT"):
        apart(os.abort)
    with pytest.raises(Died, match="ValueError: invalid literal"):
        apart(int, "many")
    assert apart(len, [1, 2]) == 2
