"""Open what `--model` names: a bundle by `qcn.load`, a training run by torch."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qcn.data.fit import fit
from qcn.data.numpy_preprocess import preprocess
from qcn.errors import MissingError, UsageError
from qcn.names import RUN
from qcn.networks.shipped import place
from qcn.runtime import Model, load
from qcn.runtime.engines import Answers, Engine
from qcn.terminal.text import command_line


def open_model(name: str, backend: str, public_key: Path | None = None, threads: int = 0) -> Model:
    """Load the model of this name; `threads` 0 means one per core."""
    folder = place(name)
    if (folder / RUN).is_file():
        if backend != "auto" or public_key:
            raise UsageError(
                f"{folder} is a training run, which runs in torch: export it to a bundle with "
                f"`{command_line('qcn', 'export', folder)}`"
            )
        return _of_run(folder)
    return load(folder, backend, threads=threads, public_key=public_key)


def _of_run(folder: Path) -> Model:
    try:
        import torch
    except ImportError as error:
        raise MissingError(
            f"{folder} is a training run, which needs torch: pip install 'qcn-toolkit[train]', or give a bundle"
        ) from error
    from qcn.train.checkpoint import load_network

    network, run = load_network(folder, "best")
    network.eval()

    class TorchEngine(Engine):
        name = f"torch {torch.__version__}"

        def classify(self, pictures: list[NDArray[np.uint8]]) -> Answers:
            images = np.stack([fit(pixels, run.data.image, run.preprocessing.fit) for pixels in pictures])
            with torch.inference_mode():
                answer = network(torch.from_numpy(preprocess(images, run.preprocessing)))
            return answer.logit.numpy(), answer.pose.numpy() if answer.pose.shape[-1] == 3 else None

    weights = run.weights("best")
    answers = (run.confidence, run.known, weights.sha256 if weights else "", run.direction)
    return Model(folder.name, tuple(run.classes), TorchEngine(), *answers)
