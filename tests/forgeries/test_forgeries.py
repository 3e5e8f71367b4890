"""Forged bundles of every kind are refused with --run, and honest ones of every kind are not. See run.py."""

import shutil
from pathlib import Path

import pytest
from bundles import made_once
from forgeries import FORGERIES, Forgery
from run import NOT_PROVEN, examine, last_sentence
from workshop import FILES, Workshop, qcn

from qcn.errors import MissingError
from qcn.export.bundle import WEIGHTS
from qcn.networks.shipped import RUNS, networks

QUICK = ("mnist-cnn-small",)  # a network that ships, verified in seconds
# One of each kind that takes seconds.
IN_BRIEF = {one.kind: one.name for one in reversed(FORGERIES) if not one.slow}.values()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(made_once(tmp_path_factory, "forgeries", lambda folder: Workshop(folder).base))


def marked(name: str, value: object, slow: bool) -> object:
    return pytest.param(value, id=name, marks=[pytest.mark.slow] if slow else [])


def test_there_are_enough() -> None:
    assert len(FORGERIES) >= 40 and len({one.kind for one in FORGERIES}) >= 10
    assert len({one.name for one in FORGERIES}) == len(FORGERIES)
    assert {one.file for one in FORGERIES} >= FILES.keys()


@pytest.mark.parametrize("forgery", [marked(one.name, one, one.name not in IN_BRIEF) for one in FORGERIES])
def test_a_forgery_is_refused_with_its_run(forgery: Forgery, workshop: Workshop, tmp_path: Path) -> None:
    outcome = examine(forgery, workshop, tmp_path / "forged")
    if not outcome.made:
        pytest.skip(outcome.reason)
    assert outcome.refused, outcome
    assert outcome.honest_without, outcome


@pytest.mark.parametrize("file", [marked(file, file, file not in (WEIGHTS, "model.onnx")) for file in FILES])
def test_an_honest_file_passes(file: str, workshop: Workshop, tmp_path: Path) -> None:
    try:
        bundle = workshop.copy(tmp_path / "honest", file)
    except MissingError as error:
        pytest.skip(str(error))
    backends = ("--backends", FILES[file].backend) if FILES[file].backend else ()
    code, said = qcn("verify-parity", bundle, *backends, "--run", workshop.run)
    assert code == 0 and NOT_PROVEN not in last_sentence(said), said


@pytest.mark.slow  # it calibrates
def test_an_honest_calibrated_bundle_passes(workshop: Workshop) -> None:
    bundle = workshop.calibrated.folder
    code, said = qcn("verify-parity", bundle, "--backends", "native,onnxruntime", "--run", workshop.run)
    assert code == 0, said


WITH_RUNS = [name for name in networks() if (RUNS / name).exists()]


@pytest.mark.parametrize("name", [marked(name, name, name not in QUICK) for name in WITH_RUNS])
def test_a_network_that_ships_passes(name: str, tmp_path: Path) -> None:
    bundle = shutil.copytree(networks()[name], tmp_path / name)
    code, said = qcn("verify-parity", bundle, "--backends", "native", "--run", RUNS / name)
    assert code == 0, said
