"""Training on a CPU beside other work: OpenMP's threads that spin while they wait (active), or sleep (passive).

    python benchmarks/waiting.py [--busy 0 2] [--rounds 3]

`qcn` sets OMP_WAIT_POLICY=passive unless the user has set it. Steps of qcn-tiny (27 images of 2×32×32) in a process of
its own per policy, in turns, beside so many processes that do nothing but work. The least time of a step is that of a
moment when nobody else worked: it says what an idle machine loses.
"""

import argparse
import multiprocessing
import os
import statistics
import time

from apart import apart
from machine import facts

POLICIES = ("active", "passive")
SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2], help="processes that work beside it")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(facts())
    for busy in arguments.busy:
        others = [multiprocessing.Process(target=work, daemon=True) for _ in range(busy)]
        for one in others:
            one.start()
        times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        try:
            for policy in POLICIES * arguments.rounds:
                os.environ["OMP_WAIT_POLICY"] = policy
                times[policy] += apart(steps)
        finally:
            for one in others:
                one.kill()
        load = f"{busy} busy processes, load {os.getloadavg()[0]:.1f}"
        for policy, found in times.items():
            median, least = statistics.median(found), min(found)
            print(f"{load}: {policy:7} median {median:7.1f} ms per step, least {least:7.1f} ms, {len(found)} steps")


def work() -> None:
    while True:
        pass


def steps() -> list[float]:
    """Milliseconds of each step in a few seconds."""
    import torch

    from qcn.zoo import create

    torch.manual_seed(0)
    network = create("qcn-tiny", in_channels=2, classes=5)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    image, label = torch.randn(27, 2, 32, 32), torch.randint(5, (27,))
    times: list[float] = []
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends or len(times) < 4:
        began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(image).logit, label).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - began))
    return times[2:]


if __name__ == "__main__":
    main()
