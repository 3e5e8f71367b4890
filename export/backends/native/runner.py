"""libqcn (`qcn.libqcn.binding`): the code that a C++ program on a device runs. No torch."""

from typing import Any

import numpy as np
from numpy.ctypeslib import as_array
from numpy.typing import NDArray

from qcn.errors import UsageError
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.receipts import Receipt
from qcn.export.backends.runner import Options, Runner
from qcn.export.bundle import WEIGHTS, Bundle
from qcn.export.bundle.golden import step_names
from qcn.export.program.program import OPERATIONS, Product, Route
from qcn.libqcn.binding import LayerSeen, NativeModel, Session, image_of
from qcn.limits import STATISTICS


class NativeRunner(Runner):
    """weights.safetensors and the manifest beside it, by libqcn's own kernels. Its self-test is left to the comparator.

    With layers it gives out the means and variances of every iteration of their routing too.
    """

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.folder, self.layers = model.path.parent, options.layers
        self.name = "libqcn"
        self._layers: dict[str, list[NDArray[np.float32]]] = {}
        self._callback = LayerSeen(self._show) if self.layers else None
        self._model: NativeModel | None = None
        self._session: Session | None = None

    def open(self) -> None:
        threads = self.options.threads or 0
        self._model = NativeModel(self.model.files, self.folder, backend="native", threads=threads, self_test=0)
        self._session = Session(self._model, self._callback)
        self.name = f"libqcn ({self._model.backend_name})"

    def infer(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        model, session = self.opened(self._model), self.opened(self._session)
        if images.shape[1:] != model.input:
            raise UsageError(f"images are {list(images.shape)}, the network takes {list(model.input)}")
        self._layers = {}
        logit, pose = session.infer(np.ascontiguousarray(images, np.float32))
        inside = {name: np.concatenate(parts) for name, parts in self._layers.items()}
        return {"logit": logit, **({} if pose is None else {"pose": pose}), **inside}

    def _show(self, view: Any, _: Any) -> None:
        """Keep what libqcn shows of a layer: its memory is libqcn's."""
        layer = view.contents
        images, parents, places = layer.images, layer.parents, (layer.height, layer.width)
        arrays = layer_arrays(
            layer.name.decode(),
            as_array(layer.statistics, (layer.iterations, STATISTICS, parents, images, layer.height * layer.width)),
            as_array(layer.pose, (images, parents, 3, *places)),
            as_array(layer.activation, (images, parents, *places)) if layer.activation else None,
        )
        for name, numbers in arrays.items():
            self._layers.setdefault(name, []).append(numbers.copy())

    def preprocess(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Images [B, C, H, W] as the network sees them, by libqcn's own pre-processing."""
        model = self.opened(self._model)
        return np.stack([model.preprocess(image_of(image.transpose(1, 2, 0))) for image in images])

    def close(self) -> None:
        for opened in (self._session, self._model):
            if opened is not None:
                opened.close()
        self._session = self._model = None


def layer_arrays(
    name: str, statistics: NDArray[np.float32], pose: NDArray[np.float32], activation: NDArray[np.float32] | None
) -> dict[str, NDArray[np.float32]]:
    """A layer's outputs from libqcn (`qcn_layer` of qcn.h), laid out as in `qcn.export.bundle.golden`.

    statistics [iterations, 7, parents, images, places], pose [images, parents, 3, h, w], activation [images, parents,
    h, w]; the class layer, which is the answer itself, has no activation.
    """
    result = {} if activation is None else {f"{name}.pose": pose, f"{name}.activation": activation}
    for step, of in zip(step_names([name], len(statistics)), statistics.transpose(0, 3, 2, 1, 4), strict=True):
        result |= {f"{step}/mean": of[:, :, 1:4], f"{step}/variance": of[:, :, 4:7]}
    return result


def receipts(bundle: Bundle) -> list[Receipt]:
    """libqcn reports the precision and kernel of each operation itself."""
    files = ModelFile.of_bundle(bundle, bundle.find(WEIGHTS)).files
    model = NativeModel(files, bundle.folder, backend="native", self_test=0)
    try:
        return [
            Receipt(one.name, one.asked, one.ran, one.kernel)
            for one in model.operations
            if issubclass(OPERATIONS[one.op], Product | Route)
        ]
    finally:
        model.close()
