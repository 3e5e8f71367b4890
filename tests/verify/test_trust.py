"""Files that carry code or run for ever: not run unasked, and never in the process that gives the verdict."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import attacks
import numpy as np
import pytest
from bundles import made_once
from command import Command
from graphs import behind, graph, put_graph
from onnx import TensorProto, helper

from qcn.errors import MissingError, QcnError, UsageError
from qcn.export.backends import frames, isolated
from qcn.export.backends.candidates import candidates
from qcn.export.backends.isolated import IsolatedRunner
from qcn.export.backends.model_file import ModelFile
from qcn.export.backends.onnx.runner import OnnxRuntimeRunner
from qcn.export.backends.runner import Options
from qcn.export.bundle import GOLDEN, Bundle, golden
from qcn.export.bundle.arrays import read_arrays, write_arrays
from qcn.export.pipeline import FROM_RUN
from qcn.names import MANIFEST
from qcn.verify.parity import verify as parity
from qcn.verify.parity.verdict import Verdict, conclude, overall

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")]
SHORT = ("--duration", "0", "--set", "warmup=0", "--set", "runs=2")
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[1;1Hpassed\u202e"


@pytest.fixture(scope="session")
def wrong(honest_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A pt2 file of another network than the honest bundle's."""
    honest = Bundle.open(honest_folders["fp32"])
    return made_once(tmp_path_factory, "wrong.pt2", lambda path: attacks.wrong_pt2(path, honest)).read_bytes()


def stranger(path: Path, time_limit: float = 30.0, carries_code: bool = False, thrifty: bool = False) -> IsolatedRunner:
    model = ModelFile(path, path.read_bytes() if path.exists() else b"")
    inner = OnnxRuntimeRunner(model, Options(thrifty=thrifty))
    return IsolatedRunner(inner, "onnxruntime", carries_code=carries_code, time_limit=time_limit)


def test_processor_time_is_saved_where_answers_are_checked_and_not_where_they_are_timed(small: Bundle) -> None:
    candidate = next(one for one in candidates(small, ["onnxruntime"]))
    assert candidate.runner(small).options.thrifty
    assert not candidate.runner_to_time(small).options.thrifty and not candidate.isolated(small).options.thrifty


# Without --trust


@pytest.mark.parametrize("by", ["sample inputs", pytest.param("constants", marks=pytest.mark.slow)])
def test_no_command_loads_a_file_that_carries_code_unless_it_is_trusted(
    small: Bundle, tmp_path: Path, qcn: Command, wrong: bytes, by: str
) -> None:
    mark = tmp_path / "mark"
    attacks.put_pt2(small, f"open({str(mark)!r}, 'w')", wrong, by)
    attacks.put_torchscript(small, attacks.Writes(str(mark), 4))
    for command, *options in (("verify-parity",), ("benchmark", *SHORT)):
        for backend in ("pt2", "torchscript"):
            code, said = qcn(command, small.folder, "--backends", f"onnxruntime,{backend}", *options)
            assert code == 2 and "it can carry code: add --trust" in said and "passed" not in said, said
    code, said = qcn("verify-parity", small.folder, "--report", tmp_path / "report")
    assert code == 0 and re.search(r"^untrusted torchscript: model\.ts.*, pt2: model\.pt2 ", said, re.MULTILINE), said
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    states = {key: verdict["status"] for key, verdict in report["backends"].items()}
    assert states["pt2: model.pt2 (fp32)"] == states["torchscript: model.ts (fp32)"] == "untrusted"
    assert "it can carry code" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert '<skipped message="it can carry code' in (tmp_path / "report" / "junit.xml").read_text(encoding="utf-8")
    code, said = qcn("doctor", small.folder)
    assert code == 0 and said.count("can carry code: runs only with --trust") == 2
    assert qcn("export", small.folder, "--format", "onnx,native")[0] == 0
    assert not mark.exists()


def test_untrusted_files_alone_have_not_passed(small: Bundle, qcn: Command, wrong: bytes) -> None:
    attacks.put_pt2(small, "pass", wrong)
    untrusted = Verdict("pt2", "model.pt2", "fp32", "untrusted", ("it can carry code",))
    assert overall([untrusted], False) == "untrusted"
    with pytest.raises(UsageError, match="nothing was run"):
        conclude([untrusted], False)
    missing = Verdict("torch", "weights.safetensors", "fp32", "missing", ("no torch",))
    assert overall([untrusted, missing], False) == "missing"
    (candidate,) = (one for one in candidates(small, None) if one.artefact.format == "pt2")
    for make in (candidate.runner, candidate.isolated, candidate.runner_to_time):
        with pytest.raises(UsageError, match=r"model\.pt2 is not run: it can carry code"):
            make(small)


# With --trust


@pytest.mark.parametrize(
    ("code", "by", "says"),
    [
        pytest.param(attacks.PATCH, "sample inputs", "logit is off by", marks=pytest.mark.slow),
        ("import os; os._exit(0)", "constants", "it does not run: .* it ended by itself, with 0"),
    ],
    ids=["classes patched", "exit with 0"],
)
def test_trusted_code_gives_no_verdict(
    small: Bundle, tmp_path: Path, qcn: Command, wrong: bytes, code: str, by: str, says: str
) -> None:
    """It runs, since that was asked for, and all that comes of it are arrays, which are those of another network."""
    mark = tmp_path / "mark"
    attacks.put_pt2(small, f"open({str(mark)!r}, 'w')\n{code}", wrong, by)
    ended, said = qcn("verify-parity", small.folder, "--backends", "pt2", "--trust")
    assert ended == 1 and mark.exists()
    assert said.startswith("failed    pt2: model.pt2 (fp32)") and re.search(says, said), said
    (verdict,) = parity.verify(small, ["onnxruntime"], {})  # nothing here was changed
    assert verdict.status == "passed"


@pytest.mark.slow
def test_a_benchmark_times_trusted_files_from_outside(small: Bundle, tmp_path: Path, qcn: Command) -> None:
    attacks.put_torchscript(small, attacks.Writes(str(tmp_path / "mark"), 4))
    code, said = qcn("benchmark", small.folder, "--backends", "torchscript", "--trust", *SHORT)
    assert code == 0 and "torchscript" in said and (tmp_path / "mark").exists()


# Graphs, which carry no code and may run for ever


def loop(bundle: Bundle) -> None:
    """The pose goes 2⁶² times round a loop before it is given out."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ],
    )
    node = helper.make_node("Loop", ["trips", "yes", "right"], ["pose"], body=body)
    behind("pose", node, trips=np.int64(2**62), yes=np.bool_(True))(bundle)


@pytest.mark.parametrize("command", ["verify-parity", "benchmark"])
def test_a_graph_that_loops_for_ever_has_a_time_limit(small: Bundle, qcn: Command, command: str) -> None:
    loop(small)
    began = time.monotonic()
    code, said = qcn(command, small.folder, "--backends", "onnxruntime", "--set", "time_limit=3")
    assert code in (1, 2) and "no answer within 3 seconds (raise it with --set time_limit=SECONDS)" in said
    assert time.monotonic() - began < 60
    for wrong in ("nan", 1e9):
        code, said = qcn(command, small.folder, "--set", f"time_limit={wrong}")
        assert code == 2 and "time_limit must be a number of seconds over 0, up to a day" in said


def test_a_child_in_a_loop_ends_with_its_parent(small: Bundle) -> None:
    loop(small)
    code = (
        "import sys, threading\nfrom pathlib import Path\nimport numpy as np\n"
        "from qcn.export.backends.runner import Options\nfrom qcn.export.backends.isolated import IsolatedRunner\n"
        "from qcn.export.backends.model_file import ModelFile\n"
        "from qcn.export.backends.onnx.runner import OnnxRuntimeRunner\n"
        "path = Path(sys.argv[1])\ninner = OnnxRuntimeRunner(ModelFile(path, path.read_bytes()), Options())\n"
        "runner = IsolatedRunner(inner, 'onnxruntime', carries_code=False)\n"
        "runner.open()\nprint(runner.process, flush=True)\n"
        "runner.infer(np.zeros((1, 3, 24, 24), np.float32))\n"
    )
    command = [sys.executable, "-c", code, str(small.folder / "model.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.5)
        assert alive(child)
        parent.kill()
    wait_until_gone(child)


def alive(process: int) -> bool:
    """Whether it runs; one that nobody waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def wait_until_gone(process: int) -> None:
    until = time.monotonic() + 20
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(process)


# The child, and what it may say


def test_answers_are_those_of_the_same_runner_here(small: Bundle) -> None:
    images = small.golden().input
    (candidate,) = candidates(small, ["onnxruntime"])
    for every_layer in (False, True):
        with candidate.runner(small, every_layer) as there, candidate._runner(small, every_layer) as here:
            assert isinstance(there, IsolatedRunner) and there.name == here.name
            for batch in (images, images[:1]):
                found, expected = there.infer(batch), here.infer(batch)
                assert list(found) == list(expected)
                for name, array in expected.items():
                    np.testing.assert_array_equal(found[name], array)
                    assert found[name].dtype == array.dtype
    with pytest.raises(UsageError, match="is not open"):
        there.infer(images)


REPLY = """
import os, sys, time
out = int(sys.argv[1])
def reply(head=b'{"arrays": []}', body=b"", lengths=None):
    os.write(out, b"".join(n.to_bytes(8, "little") for n in lengths or (len(head), len(body))) + head + body)
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os._exit(0)", "it ended by itself, with 0"),
        ("os.abort()", "it was ended by SIGABRT"),
        ("raise KeyError('\\x1b[2J')", r"ended by itself, with 1, and gave no answer; its last words: KeyError"),
        ("", "no answer within 1 seconds"),
        ("os.close(out)", "closed its channel"),
        ("reply(lengths=(1 << 62, 0))", "too long"),
        ("reply(lengths=(2, 1 << 62))", "too long"),
        ("reply(lengths=(2, 1 << 30))", "no answer within"),
        ("while True: os.write(2, b'x' * 65536)", "no answer within"),
        ("reply(b'[' * 100000)", "not JSON"),
        ("reply(b'\\x80\\x04')", "not JSON"),
        ("reply(b'[]')", "not an object with arrays"),
        ('reply(b\'{"error": {"a": ["\\x1b"]}, "arrays": []}\')', "not JSON"),
        ('reply(b\'{"error": "\\\\u001b[2J", "arrays": []}\')', r"^\\x1b\[2J$"),
        ("reply(b'{\"error\": ' + b'[' * 900 + b']' * 900 + b', \"arrays\": []}')", "did not say why"),
        ("os.kill(os.getpid(), 40)", "it was ended by 40"),
        ("os.close(2)", "no answer within 1 seconds"),
        ("import subprocess; subprocess.Popen(['yes', 'x' * 99], stdout=2); os._exit(3)", "ended by itself, with 3"),
        ('reply(b\'{"error": "torch is gone", "missing": true, "arrays": []}\')', "torch is gone"),
    ],
)
def test_a_child_that_answers_nonsense_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    monkeypatch.setattr(isolated, "START", f"{REPLY}{code}\ntime.sleep(99)")  # who ends early may not be heard
    monkeypatch.setattr(isolated, "TO_OPEN", 1)
    runner = stranger(tmp_path / "model.onnx", time_limit=1.0 if "within" in says else 30.0)
    with pytest.raises(QcnError, match=says) as raised, runner:
        pass
    assert "\x1b" not in str(raised.value) and runner._child is None


@pytest.mark.parametrize(
    "listed",
    [
        '[["a", "float32", [2]]]',  # longer than what came
        '[["a", "float32", []]]',  # shorter
        '[["a", "float32", [1]], ["a", "float32", [0]]]',
        '[["a", "object", [1]]]',
        '[["a", "<f4", [1]]]',
        '[["a", "float32", [-1, -1]]]',
        '[["a", "float32", [true]]]',
        '[["a", "float32", [1.0]]]',
        '[["a", "float32", [1' + ", 1" * 8 + "]]]",
        '[["a", "float32", [4611686018427387904, 0]]]',
        '[["a", ["float32"], [1]]]',
        '[[1, "float32", [1]]]',
        f'[["{"a" * 300}", "float32", [1]]]',
        "[" + ", ".join(["1"] * 5000) + "]",
        '[["a", "float32"]]',
        "{}",
    ],
)
def test_arrays_that_do_not_agree_with_their_bytes(listed: str) -> None:
    with pytest.raises(frames.NotAFrame):
        frames.decode(f'{{"arrays": {listed}}}'.encode(), bytearray(4 if listed[-4:] != "[]]]" else 8))


def test_frames_come_back_as_they_were() -> None:
    arrays = {
        "image": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        "none": np.zeros((0, 3), np.float16),
        "one": np.float64(3.5),
        "flag": np.array([True, False]),
    }
    whole = b"".join(map(bytes, frames.encode({"do": "infer"}, arrays)))
    head, body = frames.lengths(whole[:16])
    texts, found = frames.decode(whole[16 : 16 + head], bytearray(whole[16 + head :]))
    assert texts == {"do": "infer"} and len(whole) == 16 + head + body
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == np.shape(array)
    with pytest.raises(frames.NotAFrame, match="no type that can be compared: text is <U1"):
        frames.encode({}, {"text": np.array(["a"])})


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ('[["a", "float32", [1, 2]], ["b", "float32", [1]]]', "returns other outputs than before"),
        ('[["b", "float32", [1, 3]]]', "returns other outputs than before"),
        ('[["a", "float32", []], ["b", "float32", [2]]]', "returns one number for 'a', not one per image"),
    ],
)
def test_answers_that_cannot_be_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, says: str
) -> None:
    said = ["[]"] * 3 + ['[["a", "float32", [1, 3]]]', second]
    code = f"for one in {said!r}: reply(('{{\"arrays\": %s}}' % one).encode(), b'' if one == '[]' else bytes(12))\n"
    monkeypatch.setattr(isolated, "START", f"{REPLY}{code}time.sleep(99)")
    with stranger(tmp_path / "model.onnx") as runner:
        image = np.zeros((1, 1, 2, 2), np.float32)
        assert runner.infer(image)["a"].shape == (1, 3)
        with pytest.raises(UsageError, match=says):
            runner.infer(image)


def test_a_loaded_file_cannot_call_itself_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is not failed: only the child itself, before it loads the file, can say so, or give its name."""
    said = ['{"name": "a name", "arrays": []}'] * 2 + [
        '{"name": "forged", "error": "no", "missing": true, "arrays": []}'
    ]
    code = REPLY + f"for one in {said!r}: reply(one.encode())\ntime.sleep(9)"
    monkeypatch.setattr(isolated, "START", code)
    for carries_code, kind in ((True, UsageError), (False, MissingError)):
        runner = stranger(tmp_path / "model.onnx", carries_code=carries_code)
        with pytest.raises(kind), runner:
            pass
        assert runner.name == "a name"


@pytest.mark.parametrize("thrifty", [False, True])
def test_a_child_is_given_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thrifty: bool) -> None:
    """No secrets of the environment, no open files, no folder to import from that a stranger filled."""
    tell = "import json\nhere = {'env': sorted(os.environ), 'fds': sorted(map(int, os.listdir('/proc/self/fd'))), "
    tell += "'cwd': os.getcwd(), 'stdin': sys.stdin.read(), 'path': sys.path, 'group': os.getpgid(0) == os.getpid()}\n"
    start = isolated.START.split("from qcn")[0]
    tell += "reply(json.dumps({'error': json.dumps(here), 'arrays': []}).encode())\ntime.sleep(9)"
    monkeypatch.setattr(isolated, "START", start + REPLY + tell)
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("QCN_ONNXRUNTIME_OPS", "kept")
    monkeypatch.setenv("PYTHONPATH", "relative")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numpy.py").write_text("raise SystemExit('a stranger was imported')")
    with (tmp_path / "open").open("w") as file, pytest.raises(UsageError) as raised:
        os.set_inheritable(file.fileno(), True)
        with stranger(tmp_path / "model.onnx", thrifty=thrifty):
            pass
    reported = json.loads(str(raised.value))
    assert "GITHUB_TOKEN" not in reported["env"] and "QCN_ONNXRUNTIME_OPS" in reported["env"]
    assert ("GLIBC_TUNABLES" in reported["env"]) == thrifty  # the memory of what is timed is left as it is
    assert len(reported["fds"]) == 5  # three standard ones, its channel, and the list itself
    assert reported["cwd"] == "/" and reported["stdin"] == "" and reported["group"]
    assert (
        "" not in reported["path"]
        and str(tmp_path) not in reported["path"]
        and f"{tmp_path}/relative" in reported["path"]
    )


def test_what_a_child_starts_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import subprocess\nsleeper = subprocess.Popen(['sleep', '99'])\n"
    code += 'reply((\'{"arrays": [], "name": "%d"}\' % sleeper.pid).encode() )\n'
    code += 'reply((\'{"arrays": [], "name": "%d"}\' % sleeper.pid).encode() )\ntime.sleep(99)'
    monkeypatch.setattr(isolated, "START", f"{REPLY}{code}\ntime.sleep(99)")  # who ends early may not be heard
    runner = stranger(tmp_path / "model.onnx")
    runner.load_backend()
    sleeper = int(runner.name)
    assert alive(sleeper)
    runner.close()
    wait_until_gone(sleeper)


def test_a_child_that_crashes_leaves_a_verdict(small: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = isolated.START.replace(
        "serve(int",
        "import os, qcn.export.backends.onnx.runner as o\no.OnnxRuntimeRunner.infer = lambda *_: os.abort()\nserve(int",
    )
    monkeypatch.setattr(isolated, "START", crash)
    (verdict,) = parity.verify(small, ["onnxruntime"], {})
    assert verdict.status == "failed"
    assert f"it was ended by {signal.SIGABRT.name}, and gave no answer" in verdict.reasons[0]


# Terminals


@pytest.mark.parametrize(("operator", "name"), [(ESCAPES, "n"), ("Gather", ESCAPES)], ids=["operator", "node"])
def test_names_in_a_graph_give_a_terminal_no_orders(
    small: Bundle, tmp_path: Path, qcn: Command, operator: str, name: str
) -> None:
    """ONNX Runtime repeats the names of operators when it loads a graph, and those of nodes when it runs it."""
    behind("pose", helper.make_node("Gather", ["right", "far"], ["pose"], name=name), far=np.int64([10**6]))(small)
    model = graph(small)
    model.graph.node[-1].op_type = operator
    put_graph(small, model)
    code, said = qcn("verify-parity", small.folder, "--backends", "onnxruntime", "--report", tmp_path / "report")
    assert code == 1 and r"\x1b]0;owned\x07\x1b[2J" in said
    code, again = qcn("benchmark", small.folder, "--backends", "onnxruntime", *SHORT)
    assert code == 2 and r"\x1b]0;owned" in again
    written = [path.read_text(encoding="utf-8") for path in (tmp_path / "report").iterdir()]
    for text in (said, again, *written):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert sum("owned" in text for text in written) == 3


def test_outputs_of_odd_names_are_not_shown(small: Bundle, qcn: Command) -> None:
    model = graph(small)
    model.graph.node.append(helper.make_node("Identity", ["logit"], [ESCAPES]))
    model.graph.output.append(helper.make_tensor_value_info(ESCAPES, TensorProto.FLOAT, None))
    helper.set_model_props(model, {ESCAPES: ESCAPES})
    put_graph(small, model)
    code, said = qcn("verify-parity", small.folder, "--backends", "onnxruntime", "--set", "bisect")
    assert code == 0 and "\x1b" not in said, said


def test_file_names_and_manifests_give_a_terminal_no_orders(small: Bundle, qcn: Command) -> None:
    """Files that are not in the manifest are named, and the commands that rebuild a file are there to be copied."""
    (small.folder / f"x{ESCAPES}.onnx").write_bytes(b"")
    code, said = qcn("doctor", small.folder)
    assert code == 0 and r"unknown   x\x1b]0;owned\x07\x1b[2J\x1b[1;1Hpassed\u202e.onnx" in said, said
    path = small.folder / MANIFEST
    record = json.loads(path.read_text(encoding="utf-8"))
    for one in record["files"]:
        one["rebuild"] += ESCAPES
    path.write_text(json.dumps(record), encoding="utf-8")
    for command in ("doctor", "verify-parity", "benchmark", "export"):
        code, again = qcn(command, small.folder)
        assert code == 2, command
        said += again
    assert not set(said) & {"\x1b", "\x07", "\u202e"}


def test_layers_of_odd_names_are_refused(small: Bundle, qcn: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are printed where they leave their tolerance."""
    arrays, texts = read_arrays((small.folder / GOLDEN).read_bytes(), golden.SCHEMA)
    odd = {name.replace("capsules1", f"capsules1{ESCAPES}"): array for name, array in arrays.items()}
    texts.pop("schema")
    with monkeypatch.context() as careless:
        careless.setattr(golden, "readable", str)
        with small.adding(GOLDEN, "golden", "fp64", FROM_RUN) as draft:
            write_arrays(draft.path, odd, golden.SCHEMA, **texts)
    code, said = qcn("verify-parity", small.folder, "--backends", "onnxruntime", "--set", "bisect")
    assert code == 2 and r"capsules1\x1b]0;owned" in said and "has control characters in its name" in said
    assert not set(said) & {"\x1b", "\x07", "\u202e"}
    program = small.program()
    route = next(one for one in program.operations if one.name == "capsules1")
    renamed = tuple(replace(one, name=ESCAPES) if one is route else one for one in program.operations)
    with pytest.raises(UsageError, match="of the program has control characters in its name"):
        replace(program, operations=renamed)
