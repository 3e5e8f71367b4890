"""A server's model repository, run as its configuration says: Triton's rules, by Triton's own definition of a config.

No server is needed. What is here: its protobuf (tritonclient), the rules that it checks a repository by when it loads
one (`_check_model`, `_check_ensemble`; a test holds them against the server), and ONNX Runtime, which its backend is.
The ensemble is walked step by step: every tensor must have the name, the type and the shape that config.pbtxt says, in
batches of up to max_batch_size.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcn.errors import MissingError, UsageError
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.onnx.runner import FIX, cannot, load_onnxruntime, session_options
from qcn.export.backends.runner import Options, Runner, imported
from qcn.export.backends.triton.config import FILES, PLATFORMS
from qcn.export.backends.triton.repository import CONFIG, VERSION, read_repository

SEEN = "seen"  # what the network is given, among the answers
INSTALL = "pip install 'qcn-toolkit[serve]'"
# Triton's types, as ONNX Runtime and numpy name them.
TYPES = {"TYPE_FP32": ("tensor(float)", np.float32), "TYPE_UINT8": ("tensor(uint8)", np.uint8)}


class _Wrong(Exception):
    """Why Triton would not load or run a repository."""


@dataclass
class _Model:
    """A folder of the repository: its configuration, as Triton's protobuf has it, and its files."""

    name: str
    config: Any
    files: dict[str, bytes]
    session: Any = field(default=None, repr=False)

    @property
    def ensemble(self) -> bool:
        return bool(self.config.platform == "ensemble")

    @property
    def steps(self) -> Any:
        """The models of an ensemble, one after the other."""
        return self.config.ensemble_scheduling.step


class TritonRunner(Runner):
    """The ensemble that runs by ONNX Runtime. float32 images enter behind the pre-processing, uint8 ones before it.

    Of uint8 images it also gives out what the pre-processing made of them, SEEN.
    """

    def __init__(self, model: ModelFile, options: Options) -> None:
        super().__init__(model, options)
        self.name = "Triton's configuration by ONNX Runtime"
        self._models: dict[str, _Model] = {}
        self._whole: _Model | None = None

    def load_backend(self) -> None:
        imported("tritonclient.grpc.model_config_pb2", "tritonclient, which checks a repository,", INSTALL)
        if why := cannot(self.options.precision, "cpu"):
            raise MissingError(f"{why}: {FIX}")
        version = load_onnxruntime("cpu").__version__
        self.name = f"Triton's configuration by onnxruntime {version} (cpu)"

    def open(self) -> None:
        self.load_backend()
        try:
            self._models = _parse(read_repository(self.model.content, self.path))
            for model in (one for one in self._models.values() if not one.ensemble):
                if model.config.backend == "onnxruntime":
                    self._open(model)
                _check_model(model)
            for model in (one for one in self._models.values() if one.ensemble):
                _check_ensemble(model, self._models)
            self._whole = self._ensemble()
        except _Wrong as error:
            raise UsageError(f"{self.path}: {error}") from error

    def infer(self, images: NDArray[Any]) -> dict[str, NDArray[Any]]:
        whole = self.opened(self._whole)
        config, pixels = whole.config, images.dtype == np.uint8
        first, network = whole.steps
        (network_input,) = first.output_map.values()
        tensors = {config.input[0].name if pixels else network_input: images}
        try:
            if pixels:
                _check_tensors(whole, config.input, tensors)
                tensors |= self._step(first, tensors)
            tensors |= self._step(network, tensors)
            _check_tensors(whole, config.output, tensors)
        except _Wrong as error:
            raise UsageError(f"{self.path}: {error}") from error
        answers = {port.name: tensors[port.name] for port in config.output}
        return {**answers, SEEN: tensors[network_input]} if pixels else answers

    def close(self) -> None:
        self._models, self._whole = {}, None

    def _open(self, model: _Model) -> None:
        onnxruntime = load_onnxruntime("cpu")
        try:
            model.session = onnxruntime.InferenceSession(
                model.files[f"{VERSION}/{FILES['onnxruntime']}"],
                session_options(onnxruntime, self.options),
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:  # its errors have no common base but Exception
            raise _Wrong(f"ONNX Runtime cannot load {model.name}: {error}") from error

    def _ensemble(self) -> _Model:
        """The one whose models are all run by ONNX Runtime: its pre-processing, and then the network."""
        models = self._models
        ensembles = [one for one in models.values() if one.ensemble]
        result = [one for one in ensembles if all(models[step.model_name].session for step in one.steps)]
        if len(result) != 1:
            raise _Wrong(f"{len(result)} ensembles run in ONNX Runtime, but one is expected")
        (whole,) = result
        if len(whole.steps) != 2 or len(whole.config.input) != 1 or len(whole.steps[0].output_map) != 1:
            raise _Wrong(f"{whole.name} is not pre-processing of one tensor to another, and then the network")
        return whole

    def _step(self, step: Any, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one model on the tensors so far; the outputs get the names that the ensemble has for them."""
        model = self._models[step.model_name]
        feeds = {name: tensors[source] for name, source in step.input_map.items()}
        _check_tensors(model, model.config.input, feeds)
        names = [output.name for output in model.config.output]
        try:
            results = dict(zip(names, model.session.run(names, feeds), strict=True))
        except Exception as error:  # its errors have no common base but Exception
            raise _Wrong(f"ONNX Runtime cannot run {model.name}: {error}") from error
        _check_tensors(model, model.config.output, results)
        return {target: results[name] for name, target in step.output_map.items()}


def _parse(files: dict[str, bytes]) -> dict[str, _Model]:
    """The models of a repository, by the names of their folders."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    folders: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        folder, _, rest = path.partition("/")
        folders.setdefault(folder, {})[rest] = content
    models = {}
    for name, inside in folders.items():
        if CONFIG not in inside:
            raise _Wrong(f"{name} has no {CONFIG}")
        try:
            config = text_format.Parse(inside[CONFIG].decode(), model_config_pb2.ModelConfig())
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise _Wrong(f"{name}/{CONFIG} is not a model configuration of Triton: {error}") from None
        if config.name != name:
            raise _Wrong(f"{name}/{CONFIG} names the model '{config.name}', not its folder's name")
        if not any(path.partition("/")[0] == VERSION for path in inside):
            raise _Wrong(f"{name} has no version folder, {VERSION}")
        if config.platform != "ensemble":
            if PLATFORMS.get(config.backend) != config.platform:
                raise _Wrong(f"{name} has the backend '{config.backend}' and the platform '{config.platform}'")
            if (file := f"{VERSION}/{FILES[config.backend]}") not in inside:
                raise _Wrong(f"{name} has no file {file}")
        models[name] = _Model(name, config, inside)
    return models


def _check_model(model: _Model) -> None:
    """Triton's rules for a model of one file: its tensors, batches and warm-up."""
    config, most = model.config, model.config.max_batch_size
    if model.session:
        for words, ports, there in (
            ("input", config.input, model.session.get_inputs()),
            ("output", config.output, model.session.get_outputs()),
        ):
            _check_ports(model, words, ports, {port.name: port for port in there})
    if too_large := [size for size in config.dynamic_batching.preferred_batch_size if not 0 < size <= most]:
        raise _Wrong(f"{model.name} prefers batches of {too_large[0]}, but max_batch_size is {most}")
    for warmup in config.model_warmup:
        samples = {name: _kind(sample) for name, sample in warmup.inputs.items()}
        if samples != {port.name: _kind(port) for port in config.input}:
            raise _Wrong(f"the warm-up '{warmup.name}' of {model.name} does not match its inputs")
        if not 1 <= warmup.batch_size <= most:
            raise _Wrong(
                f"the warm-up '{warmup.name}' of {model.name} has a batch of {warmup.batch_size}, not 1 to {most}"
            )


def _check_ports(model: _Model, words: str, ports: Any, there: dict[str, Any]) -> None:
    """The inputs or outputs of a configuration against those of the ONNX file. All inputs must be named."""
    if words == "input" and (missing := there.keys() - {port.name for port in ports}):
        raise _Wrong(f"the file of {model.name} takes '{min(missing)}', which {CONFIG} does not name")
    for port in ports:
        if port.name not in there:
            raise _Wrong(f"{model.name} has the {words} '{port.name}', but its file has {', '.join(sorted(there))}")
        result, (kind, dims) = there[port.name], _kind(port)
        if TYPES.get(kind, ("",))[0] != result.type:
            raise _Wrong(f"{model.name}: the {words} '{port.name}' is {kind}, but {result.type} in its file")
        if len(result.shape) == 0 or isinstance(result.shape[0], int):
            raise _Wrong(f"{model.name}: the file's {words} '{port.name}' is {result.shape}, with no open batch")
        if tuple(result.shape[1:]) != dims:
            raise _Wrong(f"{model.name}: the {words} '{port.name}' is {list(dims)}, but {result.shape[1:]} in its file")


def _check_ensemble(model: _Model, models: dict[str, _Model]) -> None:
    """Triton's rules for an ensemble: known models, each tensor written once, before it is read, with the same type."""
    config = model.config
    if config.backend or config.instance_group or config.model_warmup or config.HasField("dynamic_batching"):
        raise _Wrong(
            f"the ensemble {model.name} has a backend, instances, a warm-up or batching: these belong to its models"
        )
    kinds = {port.name: _kind(port) for port in config.input}
    for step in model.steps:
        if step.model_name not in models:
            raise _Wrong(f"the ensemble {model.name} has a step '{step.model_name}', which is not in the repository")
        inner = models[step.model_name].config
        if inner.max_batch_size < config.max_batch_size:
            raise _Wrong(
                f"the ensemble {model.name} takes {config.max_batch_size} images at once, and {inner.name} "
                f"{inner.max_batch_size}"
            )
        for words, ports, names in (("input", inner.input, step.input_map), ("output", inner.output, step.output_map)):
            _check_map(model, words, ports, names, inner.name, kinds)
    for port in config.output:
        if (made := kinds.get(port.name, "by no step")) != _kind(port):
            raise _Wrong(f"{model.name}: '{port.name}' is {_kind(port)}, and is made {made}")
        if port.label_filename:
            labels = model.files.get(port.label_filename, b"").decode(errors="replace").splitlines()
            if len(labels) != port.dims[0]:
                raise _Wrong(f"{model.name}/{port.label_filename} has {len(labels)} labels for {port.dims[0]} classes")


def _check_map(
    model: _Model, words: str, ports: Any, names: Any, inner: str, kinds: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    """The inputs or outputs of one step; what it writes is added to `kinds`."""
    own = {port.name: _kind(port) for port in ports}
    if strange := names.keys() - own.keys():
        raise _Wrong(f"the ensemble {model.name} maps '{min(strange)}', which is not an {words} of {inner}")
    if words == "input" and (lacking := own.keys() - names.keys()):
        raise _Wrong(f"the ensemble {model.name} gives {inner} nothing for its input '{min(lacking)}'")
    for name, tensor in names.items():
        if words == "output":
            if tensor in kinds:
                raise _Wrong(f"the ensemble {model.name} writes '{tensor}' twice")
            kinds[tensor] = own[name]
        elif kinds.get(tensor) != own[name]:
            raise _Wrong(
                f"the ensemble {model.name} gives {inner} '{tensor}' as its input '{name}': it is "
                f"{kinds.get(tensor, 'made by no step before')}, but {own[name]} is expected"
            )


def _check_tensors(model: _Model, ports: Any, tensors: dict[str, NDArray[Any]]) -> None:
    """Tensors on their way, against what the configuration of a model says of them."""
    for port in ports:
        tensor, most, (kind, dims) = tensors[port.name], model.config.max_batch_size, _kind(port)
        expected = np.dtype(TYPES[kind][1])
        if tensor.dtype != expected or tensor.shape[1:] != dims or not 1 <= len(tensor) <= most:
            raise _Wrong(
                f"'{port.name}' of {model.name} is {tensor.dtype} {list(tensor.shape)}, where {expected} {list(dims)} "
                f"in batches of 1 to {most} is expected"
            )


def _kind(port: Any) -> tuple[str, tuple[int, ...]]:
    """The name of its data type, and its shape without the batch."""
    from tritonclient.grpc import model_config_pb2

    return str(model_config_pb2.DataType.Name(port.data_type)), tuple(port.dims)
