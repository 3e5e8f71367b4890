"""How often a network is wrong: `evaluate(model, …)`, and `evaluate_model(model, Request())` for the shell and Python.

evaluation    the test splits of a run or a bundle, and the files that say what was found
networks      what can be measured               rates      errors with their intervals
mistakes      the worst of them, as a picture    unknown    pictures of other things
request       what `qcn evaluate` is asked for
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qcn.evaluate.evaluation import Evaluated, answer_splits, evaluate, evaluate_model
    from qcn.evaluate.networks import Network, open_network
    from qcn.evaluate.rates import Answers, Result, measure
    from qcn.intervals import ErrorRate

PLACES = {
    "evaluation": ("Evaluated", "answer_splits", "evaluate", "evaluate_model"),
    "networks": ("Network", "open_network"),
    "rates": ("Answers", "ErrorRate", "Result", "measure"),
}
__all__ = [
    "Answers",
    "ErrorRate",
    "Evaluated",
    "Network",
    "Result",
    "answer_splits",
    "evaluate",
    "evaluate_model",
    "measure",
    "open_network",
]


def __getattr__(name: str) -> Any:
    """When it is first asked for: the shell reads what it asks for (`request`) without the rest."""
    for module, names in PLACES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"qcn.evaluate.{module}"), name)
    raise AttributeError(f"module 'qcn.evaluate' has no attribute '{name}'")
