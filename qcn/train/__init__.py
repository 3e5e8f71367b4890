"""Training: `train(settings, data_dir, out)` starts a run in the folder `out`, `resume(out, data_dir)` continues one.

begin         a new run, or going on with one           start        the weights to start from, and teachers
loop          the epochs and steps                      settings     what a user can choose, and the presets
checkpoint    a run on disk                             record       what run.json says of it
losses        what is minimised                         schedules    the learning rate and the margin
logbook       progress bar, metrics, curves             graph        a step as one CUDA graph
trackers      callbacks, MLflow, Weights & Biases       balance      classes of different sizes
validation    a network's answers to a set of images    faults       where a NaN came from
signals       Ctrl-C and SIGTERM                        quantise     layers that round as an int8 plan does
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qcn import Run
    from qcn.train.begin import resume, train

__all__ = ["resume", "train"]


def __getattr__(name: str) -> Any:
    """`train` and `resume`, when they are first asked for: settings are checked before torch is imported."""
    if name in __all__:
        from qcn.train import begin

        return getattr(begin, name)
    raise AttributeError(f"module 'qcn.train' has no attribute '{name}'")


class _Package(ModuleType):
    """`qcn.train` is this package and, since its users know the word from the shell, a function too."""

    def __call__(self, dataset: Any, **settings: Any) -> "Run":
        import qcn

        return qcn.api.train(dataset, **settings)


sys.modules[__name__].__class__ = _Package
