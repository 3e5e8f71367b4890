"""Python in the README's own words: from pictures to a verified bundle, with the settings of the shell."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import CLASSES, picture
from PIL import Image

import qcn
from qcn.calibrate.request import CalibrationRequest as Calibration
from qcn.errors import CheckFailed, UsageError
from qcn.export.bundle import Batch
from qcn.export.bundle import Bundle as Stored
from qcn.networks.model import qcn_tiny
from qcn.networks.zoo import MODELS
from qcn.train.settings import RunSettings
from qcn.verify.speed.timings import read_benchmark

ROOT = Path(__file__).parent.parent


def snippet(page: str) -> str:
    """The first block of Python in a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition("```python\n")[2].partition("```")[0]


def write_split_pictures(folder: Path) -> None:
    """A few pictures of each class to train, validate and test on."""
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for kind in CLASSES:
            (folder / split / kind).mkdir(parents=True)
            for number in range(12):
                path = folder / split / kind / f"{number:03}.png"
                Image.fromarray(picture(kind, rng)).save(path)


@pytest.mark.slow
def test_the_words_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exactly as it stands there, with a smaller network called qcn, one epoch, and a calibration for size."""
    write_split_pictures(tmp_path / "my/pictures")
    Image.fromarray(picture("disc", np.random.default_rng(1))).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MODELS, "qcn", qcn_tiny)
    monkeypatch.setattr("qcn.train.settings.FEWEST_STEPS", 1)
    monkeypatch.setattr(RunSettings, "epochs", 1)
    defaults = Calibration.__init__.__defaults__ or ()
    # Whether int8 is faster in so small a network is a matter of luck: it is chosen by size.
    instead = {Calibration.max_drop: 40.0, Calibration.goal: "size"}
    allowed = tuple(instead.get(value, value) if isinstance(value, float | str) else value for value in defaults)
    monkeypatch.setattr(Calibration.__init__, "__defaults__", allowed)
    names: dict[str, object] = {}
    assert snippet("docs/python.md") == snippet("README.md")
    exec(snippet("README.md"), names)
    said = capsys.readouterr().out
    assert "fastest: " in said and "passed: all " in said and said.splitlines()[-1] in CLASSES
    bundle, run = names["bundle"], names["run"]
    assert isinstance(run, qcn.Run) and isinstance(bundle, qcn.Bundle) and isinstance(bundle, Stored)
    assert qcn.open("runs/train/pictures-qcn").folder == run.folder
    assert str(run.evaluate()) == str(bundle.evaluate()) and "of 36 images wrong" in str(run.evaluate())


def test_a_run_and_its_bundle_as_objects(run: Path, data_dir: Path, tmp_path: Path) -> None:
    trained = qcn.open(run)
    assert isinstance(trained, qcn.Run) and trained.exportable and trained.record.model.name == "qcn-tiny"
    bundle = trained.export("native", "onnx", batch="1:2:4", out=tmp_path / "bundle", data_dir=data_dir)
    assert [one.format for one in bundle.made] == ["native", "onnx"] and bundle.find("model.onnx").batch == Batch(
        1, 2, 4
    )
    checked = bundle.verify(backends="native", run=trained, data_dir=data_dir, report=tmp_path / "report")
    assert checked.passed and checked.summary.startswith(f"passed: the same network as {run}, and all 1 that ran")
    assert (tmp_path / "report/report.html") in checked.files and checked.report.status == "passed"
    measured = bundle.benchmark(backends=["native"], duration=0.05, warmup=1, batch=2, json=tmp_path / "times.json")
    assert "batch 2" in str(measured) and measured.fastest[0].startswith("fastest: native") and not measured.problem
    assert read_benchmark(tmp_path / "times.json") == measured.record
    pixels = np.full((28, 28), 90, np.uint8)
    assert bundle.predict(pixels).label in bundle.manifest.classes
    assert np.allclose(bundle.predict([pixels])[0].logit, trained.predict(pixels).logit, atol=1e-3)
    options = {"data_dir": data_dir, "out": tmp_path / "evaluation"}
    assert str(bundle.evaluate(**options)) == str(trained.evaluate(device="cpu", **options))


def test_a_bundle_that_answers_otherwise_has_not_passed(bundle: Stored) -> None:
    """Each verdict as an object; the same error that the shell ends with is in it."""
    opened = qcn.open(bundle.folder)
    assert isinstance(opened, qcn.Bundle)
    strict = opened.verify(backends="native", atol="logit:1e-12", rtol=0)
    assert not strict.passed and "not the answers of the trained network" in strict.summary
    with pytest.raises(CheckFailed):
        strict.require()


def test_what_is_no_setting_is_refused_by_name(run: Path, bundle: Stored) -> None:
    trained, opened = qcn.open(run), qcn.Bundle.open(bundle.folder)
    for call, says in (
        (lambda: qcn.train("mnist", epohcs=3), "no setting named 'epohcs'; did you mean 'epochs'?"),
        (lambda: qcn.train("mnist", model="qnc"), "did you mean 'qcn'?"),
        (lambda: qcn.train("mnist", epochs="many"), "epochs must be a whole number, not 'many'"),
        (lambda: trained.export("onxn"), "no format named 'onxn'"),
        (lambda: trained.export(presicion="fp16"), "did you mean 'precision'?"),
        (lambda: opened.verify(backend="native"), "did you mean 'backends'?"),
        (lambda: opened.benchmark(fps=0), "fps must be a number over 0"),
        (lambda: qcn.open("no/where"), "no/where is neither a training run (no run.json) nor a bundle"),
    ):
        with pytest.raises(UsageError, match=re.escape(says)):
            call()


def test_the_package_stays_a_package_that_can_be_called() -> None:
    """`qcn.train` is both, whichever was imported first, and `import qcn` imports neither torch nor the rest."""
    code = (
        "import sys, qcn; assert not {'torch', 'numpy', 'qcn.api', 'qcn.train'} & sys.modules.keys();"
        "assert callable(qcn.train); from qcn.train.settings import Settings; import qcn.train.settings as s;"
        "assert callable(qcn.train) and s.Settings is Settings and qcn.open and qcn.Run and qcn.Bundle;"
        "assert 'torch' not in sys.modules and set(qcn.__all__) <= set(dir(qcn));"
        "assert not {'os', 'TYPE_CHECKING'} & set(dir(qcn)); from qcn import *; assert Answer is qcn.Answer"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_bundle_needs_no_torch(bundle: Stored) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import qcn, numpy;"
        f"opened = qcn.open({str(bundle.folder)!r});"
        "assert opened.verify(backends='native').passed;"
        "opened.predict(numpy.zeros((28, 28), numpy.uint8))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
