"""Settings that verify-parity, benchmark and ship-check share. Light: the shell makes its options of them."""

from typing import Any

from qcn.errors import UsageError
from qcn.export.backends import BACKENDS
from qcn.settings import setting

TIME_LIMIT = 60.0
TRUST = "Also run files that can carry code (TorchScript, pt2). Use it only if you trust their author."
OTHER_NETWORK = "Accept a --baseline of another network, such as an earlier training."


def backends() -> Any:
    """Backends by name; none: every one that has a file."""
    return setting(
        (),
        "{choices}; separate several by commas, or repeat the option.",
        unset="all that run here",
        choices=tuple(BACKENDS),
    )


def time_limit() -> Any:
    words = "Seconds per answer for a file that runs in a separate process; five times that to load it."
    return setting(TIME_LIMIT, words, rare=True)


def check_time_limit(seconds: float) -> None:
    """Refuse a time limit that the system cannot wait for."""
    if not 0 < seconds <= 86_400:
        raise UsageError(f"time_limit must be a number of seconds over 0, up to a day (86400), not {seconds:g}")
