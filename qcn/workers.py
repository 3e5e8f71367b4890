"""Pieces of work for several processes that Ray starts, on this machine or on a cluster (`--engine ray`)."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from qcn.errors import MissingError, QcnError
from qcn.packages import installed
from qcn.terminal.progress import doing

Work = TypeVar("Work")
Result = TypeVar("Result")
INSTALL = "pip install 'qcn-toolkit[ray]'"


def by_ray(prepare: Callable[[], Callable[[Work], Result]], work: Sequence[Work]) -> Iterator[Result]:
    """The result of each piece of work as soon as it is there, in any order. `prepare` returns what does the work.

    There is a process for each GPU, or where there is none for each core, of this machine or of the cluster that
    RAY_ADDRESS names. One that dies is started again, and gets the same piece.
    """
    if not work:
        return
    if not installed("ray"):
        raise MissingError(f"--engine ray needs Ray: {INSTALL}")
    doing("starting Ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report its use to its makers
    import ray
    from ray.util import ActorPool

    class Worker:
        def __init__(self) -> None:
            self.do = prepare()

        def answer(self, piece: Work) -> Result:
            return self.do(piece)

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0))
        remote = ray.remote(num_cpus=1, num_gpus=bool(gpus), max_restarts=-1, max_task_retries=-1)(Worker)
        pool = ActorPool([remote.remote() for _ in range(min(len(work), gpus or int(there["CPU"])))])
        yield from pool.map_unordered(lambda worker, piece: worker.answer.remote(piece), work)
    except ray.exceptions.RayTaskError as error:
        cause = error.as_instanceof_cause()
        raise cause if isinstance(cause, QcnError) else QcnError(f"Ray: {cause}") from error
    except ray.exceptions.RayError as error:
        raise QcnError(f"Ray: {str(error).strip().splitlines()[-1]}") from error
    finally:
        ray.shutdown()
