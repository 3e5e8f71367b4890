"""What can be said of ExecuTorch's .pte files without torch; `qcn.export.backends.executorch.writer` makes them."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def summary(facts: Mapping[str, Any]) -> str:
    """Which operators of a file XNNPACK runs, and which run by portable kernels."""
    delegated, left = (facts.get(name, {}) for name in ("xnnpack", "portable"))
    others = ", ".join(f"{count} {name}" for name, count in left.items())
    return (
        f"XNNPACK runs {sum(delegated.values())} of {sum(delegated.values()) + sum(left.values())} operators, in "
        f"{facts.get('parts')} parts; portable kernels run {others or 'none'}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torchao, torch and ExecuTorch say of their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
