"""A model repository for Triton: from a bundle, held against Triton's protobuf and rules, walked, asked by a client."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from command import Command
from PIL import Image
from runners import create
from triton_server import missing, serving

import qcn as product
from qcn.data.numpy_preprocess import preprocess
from qcn.data.spec import Preprocessing
from qcn.errors import MissingError, UsageError
from qcn.export import pipeline
from qcn.export.backends.candidates import candidates
from qcn.export.backends.triton.batching import BatchTime, FileTimes, Latencies, choose_batching, plain
from qcn.export.backends.triton.preprocess import PIXELS, preprocess_graph
from qcn.export.backends.triton.repository import model_name, read_repository, write_files
from qcn.export.bundle import Batch, Bundle
from qcn.export.request import ExportRequest
from qcn.storage import records
from qcn.verify.machine import environment
from qcn.verify.parity.preprocessing import check_repositories
from qcn.verify.speed.latency import LAUNCHED_ONE_BY_ONE, Latency, Speed
from qcn.verify.speed.timings import Benchmark, for_serving
from qcn.verify.speed.turns import TimingPlan

CLIENT = Path(__file__).parents[2] / "examples" / "triton_client.py"
REBUILD = "qcn export {bundle} --format triton"
Files = dict[str, bytes]


@pytest.fixture
def pb() -> Any:
    """Triton's own definition of a model configuration."""
    return pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="pip install 'tritonclient[grpc]'")


def parsed(pb: Any, files: Files, model: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(files[f"{model}/config.pbtxt"].decode(), pb.ModelConfig())


@pytest.fixture
def served(bundle: Bundle) -> Bundle:
    """A bundle of qcn-tiny with a repository, nothing measured."""
    exported, _ = pipeline.export(bundle.folder, None, ExportRequest(formats=("triton",)), bundle.folder)
    return exported


def speed(batch: int, milliseconds: float, compute: float | None = None, **more: Any) -> Speed:
    times, short = (Latency(*(of,) * 7) if of else None for of in (milliseconds, compute))
    about = {"backend": "onnxruntime", "file": "model.onnx", "precision": "fp32", **more}
    return Speed(**about, batch=batch, latency_ms=times, compute_ms=short)


@pytest.fixture
def measured(bundle: Bundle, tmp_path: Path) -> Path:
    """The file of a benchmark by which batches of 4 are the best."""
    speeds = {one.key: one for one in (speed(1, 1.0), speed(4, 3.0), speed(16, 14.0))}
    return times(bundle, tmp_path / "measured.json", speeds)


def times(bundle: Bundle, path: Path, speeds: dict[str, Speed]) -> Path:
    """The file of a benchmark of this bundle, which gets its graph now."""
    exported, _ = pipeline.export(bundle.folder, None, ExportRequest(formats=("onnx",)), bundle.folder)
    network, files = exported.manifest.network_sha256, {"model.onnx": exported.find("model.onnx").sha256}
    records.write(path, Benchmark(4, "tiny", network, files, "", TimingPlan(), environment(), speeds))
    return path


def test_a_repository_is_served_as_measured(pb: Any, bundle: Bundle, measured: Path, qcn: Command) -> None:
    code, said = qcn("export", bundle.folder, "--format", "triton", "--benchmark", measured)
    assert code == 0 and "a batch of 4 saves 0.25 ms per image" in said and "tar -xf" in said
    files = read_repository((bundle.folder / "triton.tar").read_bytes())
    assert files["tiny-network/1/model.onnx"] == (bundle.folder / "model.onnx").read_bytes()
    assert files["tiny/labels.txt"].decode().splitlines() == list(bundle.manifest.classes)
    network, whole = parsed(pb, files, "tiny-network"), parsed(pb, files, "tiny")
    assert list(network.dynamic_batching.preferred_batch_size) == [4]
    assert network.dynamic_batching.max_queue_delay_microseconds == 250
    assert [one.batch_size for one in network.model_warmup] == [1, 4]
    assert (network.max_batch_size, whole.max_batch_size, whole.platform) == (64, 64, "ensemble")
    assert [step.model_name for step in whole.ensemble_scheduling.step] == ["tiny-preprocess", "tiny-network"]

    code, said = qcn("verify-parity", bundle.folder, "--backends", "triton")
    assert code == 0 and "passed    triton: triton.tar (fp32)" in said
    assert "passed    preprocessing: triton.tar (fp32)" in said
    code, said = qcn("doctor", bundle.folder)
    assert code == 0 and "in Triton Inference Server; checked here" in " ".join(said.split())
    code, said = qcn("benchmark", bundle.folder, "--backends", "triton")
    assert code == 2 and "perf_analyzer" in said

    content = (bundle.folder / "triton.tar").read_bytes()
    pipeline.export(bundle.folder, None, ExportRequest(formats=("triton",)), bundle.folder)
    assert (bundle.folder / "triton.tar").read_bytes() != content
    qcn("export", bundle.folder, "--format", "triton", "--benchmark", measured)
    assert (bundle.folder / "triton.tar").read_bytes() == content, "the same bytes, whenever it is made"


def test_batches_are_preferred_where_they_pay() -> None:
    def of(*timed: BatchTime, device: Any = "cpu") -> Any:
        return choose_batching(FileTimes("1", "2", "model.onnx", device, timed), most=32)

    pays = of(BatchTime(8, 4.0), BatchTime(1, 1.0), BatchTime(32, 12.0), BatchTime(64, 1.0))
    assert (pays.preferred, pays.delay_us, pays.instances) == ((8, 32), 625, 1)
    worse = of(BatchTime(1, 1.0), BatchTime(8, 8.0))
    assert (worse.preferred, worse.batches) == ((), False)
    alone = of(BatchTime(1, 1.0))
    assert alone.batches and not alone.delay_us and "qcn benchmark BUNDLE --batch 1 --batch 8" in alone.words[1]
    assert [of(BatchTime(1, 1.0, compute), device="cuda").instances for compute in (0.95, 0.6, 0.01)] == [1, 2, 4]
    assert plain("cuda").device == "cuda" and plain("cpu").batches


def test_a_server_launches_one_by_one_and_takes_the_faster_device(bundle: Bundle, tmp_path: Path) -> None:
    on_gpu, path = {"backend": "onnxruntime-cuda"}, tmp_path / "b.json"
    speeds = (speed(1, 5.0), speed(1, 0.1, 0.05, **on_gpu), speed(1, 2.0, 0.9, variant=LAUNCHED_ONE_BY_ONE, **on_gpu))
    found = for_serving(times(bundle, path, {one.key: one for one in speeds}))
    graph = Bundle.open(bundle.folder).find("model.onnx").sha256
    of = (bundle.manifest.network_sha256, graph, "model.onnx")
    assert found.measured == (
        FileTimes(*of, "cpu", (BatchTime(1, 5.0, None),)),
        FileTimes(*of, "cuda", (BatchTime(1, 2.0, 0.9),)),
    )
    exported, _ = pipeline.export(bundle.folder, None, ExportRequest(formats=("triton",), benchmark=found), tmp_path)
    text = read_repository((exported.folder / "triton.tar").read_bytes())["tiny-network/config.pbtxt"].decode()
    assert "KIND_GPU" in text and "count: 3" in text
    assert 'key: "use_tf32"\n        value: "0"' in text
    assert exported.find("triton.tar").rebuild.endswith(f"--benchmark {path}")
    for times_of, words in (
        (("0" * 64, graph), "has no latency for model.onnx of this network, only for another network: qcn benchm"),
        ((of[0], "0" * 64), "has no latency for this model.onnx, only for model.onnx that the bundle had before: qcn"),
    ):
        other = Latencies(path, (FileTimes(*times_of, "model.onnx", "cpu", (BatchTime(1, 1.0),)),))
        with pytest.raises(UsageError, match=words):
            pipeline.export(bundle.folder, None, ExportRequest(formats=("triton",), benchmark=other), tmp_path)


@pytest.mark.parametrize(
    ("image", "spec"),
    [
        ((3, 17, 17), Preprocessing(mean=(0.45, 0.35, 0.25), std=(0.2, 0.3, 0.4))),
        ((2, 20, 31), Preprocessing(resize=13, crop=9, standardise="image")),
        ((1, 12, 12), Preprocessing(resize=18, mean=(0.13,), std=(0.31,))),
    ],
)
def test_preprocessing_in_a_graph_is_the_same_bits(image: tuple[int, int, int], spec: Preprocessing) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, *image), np.uint8)
    pixels[0] = 77  # a constant image has no deviation
    session = onnxruntime.InferenceSession(preprocess_graph(image, spec, "image").SerializeToString())
    for size in (1, 5):
        (found,) = session.run(None, {PIXELS: pixels[:size]})
        np.testing.assert_array_equal(found, preprocess(pixels[:size], spec))


def edited(model: str, old: str, new: str) -> Callable[[Files], None]:
    def edit(files: Files) -> None:
        text = files[f"{model}/config.pbtxt"].decode()
        assert old in text
        files[f"{model}/config.pbtxt"] = text.replace(old, new, 1).encode()

    return edit


def put(bundle: Bundle, files: Files) -> None:
    """Another repository in the bundle, with a hash that fits."""
    with bundle.adding("triton.tar", "triton", "fp32", REBUILD, batch=Batch(1, 8, 64)) as draft:
        write_files(draft.path, files)


ALONE = b"""name: "tiny" platform: "ensemble" max_batch_size: 64
input { name: "image" data_type: TYPE_FP32 dims: [1, 28, 28] }
output { name: "pose" data_type: TYPE_FP32 dims: [10, 3] }
ensemble_scheduling { step { model_name: "tiny-network" model_version: -1
  input_map { key: "image" value: "image" } output_map { key: "pose" value: "pose" } } }"""
FAULTS: dict[str, tuple[Callable[[Files], None], str]] = {
    "not protobuf": (edited("tiny", 'name: "tiny"', "nom: 3"), "not a model configuration of Triton"),
    "another folder's name": (edited("tiny", 'name: "tiny"', 'name: "tony"'), "not its folder's name"),
    "no version": (lambda files: files.__delitem__("tiny/1/"), "no version folder"),
    "no file": (
        lambda files: files.update({"tiny-network/1/x": files.pop("tiny-network/1/model.onnx")}),
        "no file 1/model.onnx",
    ),
    "backend": (edited("tiny-network", 'backend: "onnxruntime"', 'backend: "tensorrt"'), "and the platform 'onnxrunt"),
    "name": (edited("tiny-network", 'name: "pose"', 'name: "poses"'), "its file has logit, pose"),
    "input's name": (edited("tiny-network", 'name: "image"', 'name: "picture"'), "takes 'image', which"),
    "type": (edited("tiny-preprocess", "TYPE_UINT8", "TYPE_FP32"), "is TYPE_FP32, but tensor(uint8) in its file"),
    "dims": (edited("tiny-network", "dims: [10, 3]", "dims: [3, 10]"), "is [3, 10], but [10, 3] in its file"),
    "step": (edited("tiny", "tiny-preprocess", "tiny-before"), "'tiny-before', which is not in the repository"),
    "map": (edited("tiny", 'key: "image"', 'key: "img"'), "maps 'img', which is not an output of tiny-preprocess"),
    "type between": (edited("tiny", "TYPE_UINT8", "TYPE_FP32"), "('TYPE_UINT8', (1, 28, 28)) is expected"),
    "ensemble's batch": (edited("tiny", "max_batch_size: 64", "max_batch_size: 65"), "takes 65 images at once"),
    "preferred": (
        edited("tiny-network", "dynamic_batching {", "dynamic_batching { preferred_batch_size: [65]"),
        "prefers batches of 65, but max_batch_size is 64",
    ),
    "warm-up": (edited("tiny-network", "zero_data: true\n", "zero_data: true dims: 1\n"), "does not match its inputs"),
    "ensemble's instances": (
        edited("tiny", "parameters", "instance_group { count: 1 }\nparameters"),
        "belong to its models",
    ),
    "a step too many": (
        edited("tiny", "step {", 'step { model_name: "tiny-network" }\n  step {'),
        "gives tiny-network nothing for its input 'image'",
    ),
    "one step": (lambda files: files.update({"tiny/config.pbtxt": ALONE}), "is not pre-processing of one tensor"),
    "labels": (lambda files: files.update({"tiny/labels.txt": b"0\n1\n"}), "has 2 labels for 10 classes"),
}


def test_what_triton_would_refuse_is_found(pb: Any, served: Bundle, tmp_path: Path) -> None:
    honest, path = read_repository((served.folder / "triton.tar").read_bytes()), tmp_path / "triton.tar"
    with (
        create("triton", served.folder / "triton.tar") as runner,
        pytest.raises(UsageError, match="of 1 to 64 is expected"),
    ):
        runner.infer(np.zeros((65, *served.manifest.input.shape), np.float32))
    for fault, (plant, words) in FAULTS.items():
        files = dict(honest)
        plant(files)
        write_files(path, files)
        with pytest.raises(UsageError) as refused:
            create("triton", path).open()
        assert words in str(refused.value), fault
    for content, words in ((b"no tar", "is not a repository that"), (b"", "is not a repository that")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            create("triton", path).open()
    write_files(path, {"../outside": b""})
    with pytest.raises(UsageError, match="not a plain file or folder below the repository"):
        create("triton", path).open()


def test_another_preprocessing_or_order_of_classes_is_found(pb: Any, served: Bundle) -> None:
    files = read_repository((served.folder / "triton.tar").read_bytes())
    other = Preprocessing(mean=(0.2,), std=(0.4,))
    files["tiny-preprocess/1/model.onnx"] = preprocess_graph((1, 28, 28), other, "image").SerializeToString()
    files["tiny/labels.txt"] = b"".join(reversed(files["tiny/labels.txt"].splitlines(keepends=True)))
    put(served, files)
    (verdict,) = check_repositories(served, candidates(served, ["triton"]), 60)
    inputs, labels = verdict.reasons
    assert verdict.status == "failed" and "what the network sees is not what it saw" in inputs
    assert "tiny/labels.txt has other classes, or in another order, than manifest.json" in labels


def test_what_is_missing_or_cannot_be_served_is_said(served: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tritonclient.grpc.model_config_pb2", None)
        with pytest.raises(MissingError, match=r"pip install 'qcn-toolkit\[serve\]'"):
            create("triton", served.folder / "triton.tar").open()
    for request, words in (
        (
            ExportRequest(formats=("triton",), batch=Batch(4, 4, 4)),
            "takes batches of 4, and a server's go from 1 image up",
        ),
        (ExportRequest(formats=("triton",), routing="fused"), "leave out --routing fused"),
        (ExportRequest(formats=("openvino",), routing="fused"), "--format openvino has no fused routing"),
    ):
        with pytest.raises(UsageError, match=words):
            pipeline.export(served.folder, None, request, served.folder)
    assert model_name("a b/ü.", "fp32") == "a-b" and model_name("…", "fp16") == "qcn-fp16"


def test_an_engine_is_served_beside_the_graph(pb: Any, served: Bundle) -> None:
    left_out = {
        "rtx": ({"flavour": "rtx"}, "Triton does not run plans of TensorRT-RTX"),
        "bare": ({"stripped": True}, "it has no weights, until `qcn export --refit` gives it some"),
        "any": ({"version_compatible": True}, "it is version-compatible, and"),
    }
    for name, facts in (("plan", {}), *((name, facts) for name, (facts, _) in left_out.items())):
        with served.adding(f"engines/{name}.engine", "trt", "fp32", REBUILD, batch=Batch(1, 8, 32)) as draft:
            draft.path.write_bytes(name.encode())
            draft.facts = facts
    _, (result,) = pipeline.export(served.folder, None, ExportRequest(formats=("triton",)), served.folder)
    for name, (_, why) in left_out.items():
        assert any(note.startswith(f"engines/{name}.engine is left out: {why}") for note in result.notes), name
    files = read_repository((served.folder / "triton.tar").read_bytes())
    assert files["tiny-trt-network/1/model.plan"] == b"plan"
    network, whole = parsed(pb, files, "tiny-trt-network"), parsed(pb, files, "tiny-trt")
    assert (network.platform, network.max_batch_size, whole.max_batch_size) == ("tensorrt_plan", 32, 32)
    assert network.instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU
    renamed_between = parsed(pb, files, "tiny")
    for step, side in zip(renamed_between.ensemble_scheduling.step, ("output_map", "input_map"), strict=True):
        getattr(step, side)["image"] = "between"  # which is Triton's right
    put(served, {**files, "tiny/config.pbtxt": str(renamed_between).encode()})
    assert check_repositories(served, candidates(served, ["triton"]), 60)[0].status == "passed"
    with create("triton", served.folder / "triton.tar") as runner:  # its rules hold for the engine's models too
        assert runner.infer(served.golden().input).keys() == {"logit", "pose"}


@contextmanager
def server(repository: Path, pb: Any) -> Iterator[str]:
    """Triton's gRPC service, of which it has what a client asks for; the runner answers. Its address."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    runner, files = create("triton", repository), read_repository(repository.read_bytes())

    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ModelConfig(self, request: Any, context: Any) -> Any:
            return service_pb2.ModelConfigResponse(config=parsed(pb, files, request.name))

        def ModelInfer(self, request: Any, context: Any) -> Any:
            (tensor,) = request.inputs
            assert (tensor.name, tensor.datatype) == ("pixels", "UINT8")
            pixels = np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(tensor.shape)
            activation = runner.infer(pixels)["logit"]  # type: ignore[arg-type]
            assert request.outputs[0].parameters["classification"].int64_param == 1
            labels = files[f"{request.model_name}/labels.txt"].decode().splitlines()
            texts = [f"{row.max():f}:{row.argmax()}:{labels[row.argmax()]}".encode() for row in activation]
            packed = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            output = service_pb2.ModelInferResponse.InferOutputTensor(
                name="logit", datatype="BYTES", shape=[len(texts), 1]
            )
            return service_pb2.ModelInferResponse(outputs=[output], raw_output_contents=[packed])

    with runner, futures.ThreadPoolExecutor(1) as pool:
        listening = grpc.server(pool)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), listening)
        port = listening.add_insecure_port("localhost:0")
        listening.start()
        try:
            yield f"localhost:{port}"
        finally:
            listening.stop(0).wait()


@pytest.fixture
def pictures(bundle: Bundle, tmp_path: Path) -> list[Path]:
    """Golden images as files, of another size."""
    golden, files = bundle.golden(), []
    for row in golden.with_image[:3]:
        files.append(tmp_path / f"{row}.png")
        Image.fromarray(golden.image[row][0]).resize((40, 50)).save(files[-1])
    return files


def check_client(address: str, bundle: Bundle, pictures: list[Path]) -> None:
    """The client says what libqcn answers."""
    command = [sys.executable, str(CLIENT), address, "tiny", *map(str, pictures)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    answers = product.load(bundle.folder).predict([str(picture) for picture in pictures])
    expected = [
        f"{path}: {one.label} (logit {one.logit.max():.3f})" for path, one in zip(pictures, answers, strict=True)
    ]
    assert said.splitlines() == expected


def test_the_client_gets_what_libqcn_answers(pb: Any, served: Bundle, pictures: list[Path]) -> None:
    with server(served.folder / "triton.tar", pb) as address:
        check_client(address, served, pictures)


needs_triton = pytest.mark.skipif(bool(missing()), reason=missing())


def unpacked(files: Files, folder: Path) -> Path:
    """A repository as Triton reads it."""
    for name, content in files.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content)
    return folder


@pytest.mark.slow
@needs_triton
def test_triton_itself_serves_a_repository(
    bundle: Bundle, measured: Path, pictures: list[Path], tmp_path: Path
) -> None:
    request = ExportRequest(formats=("triton",), benchmark=for_serving(measured))
    pipeline.export(bundle.folder, None, request, bundle.folder)
    models = unpacked(read_repository((bundle.folder / "triton.tar").read_bytes()), tmp_path / "models")
    golden, rows = bundle.golden(), bundle.golden().with_image
    with serving(models, tmp_path) as triton:
        assert triton.ask("/v2/health/ready") == (200, None), triton.log.read_text(errors="replace")
        _, said = triton.ask("/v2/models/tiny-network/stats")
        assert [of["batch_size"] for of in said["model_stats"][0]["batch_stats"]] == [1, 4]  # those of its warm-up
        check_client(triton.grpc, bundle, pictures)
        pixels = golden.image[rows]
        tensor = {"name": "pixels", "datatype": "UINT8", "shape": pixels.shape, "data": pixels.ravel().tolist()}
        status, answer = triton.ask("/v2/models/tiny/infer", {"inputs": [tensor]})
        assert status == 200, answer
    found = {one["name"]: np.reshape(one["data"], one["shape"]) for one in answer["outputs"]}
    np.testing.assert_allclose(found["logit"], golden.reference.logit[rows], atol=1e-4)
    np.testing.assert_allclose(found["pose"], golden.reference.pose[rows], atol=1e-3)


@pytest.mark.slow
@needs_triton
def test_triton_itself_refuses_what_we_say_it_would(served: Bundle, tmp_path: Path) -> None:
    ours = {"one step", "labels"}  # what it would serve, but nobody wants
    honest, models = read_repository((served.folder / "triton.tar").read_bytes()), tmp_path / "models"
    with serving(unpacked(honest, models), tmp_path, "--model-control-mode=explicit") as triton:
        load = "/v2/repository/models/tiny/load"
        assert triton.ask(load, {}) == (200, None), triton.log.read_text(errors="replace")
        for fault, (plant, _) in FAULTS.items():
            triton.ask("/v2/repository/models/tiny/unload", {"parameters": {"unload_dependents": True}})
            shutil.rmtree(models)
            files = dict(honest)
            plant(files)
            unpacked(files, models)
            status, said = triton.ask(load, {})
            assert (status == 200) == (fault in ours), f"{fault}: {said}"
