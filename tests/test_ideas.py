"""docs/ideas.md: its files are saved and its commands are run as they stand there, on few and small pictures."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pictures import write_pictures

from qcn.errors import UsageError
from qcn.export.program.lower import lower
from qcn.networks.model import capsule_layers, qcn_tiny, routed_by
from qcn.routing import em_routing
from qcn.train.checkpoint import load_network

PAGE = Path(__file__).parents[1] / "docs" / "ideas.md"
FILES = ("idea.py", "gradients.py", "ablation.py", "small.py", "backbone.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and its pictures."""
    folder = tmp_path_factory.mktemp("ideas")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, block in zip(FILES, blocks, strict=True):
        (folder / name).write_text(block.replace("epochs=2", "epochs=1"), encoding="utf-8")
    write_pictures(folder / "my" / "pictures", 16)
    return folder


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A line of the page, by this Python; runs are as short as can be."""
    words = re.sub("--epochs 8", "--epochs 1", re.sub("--epochs 16", "--epochs 2", line.partition("#")[0])).split()
    programs = {
        "python": [sys.executable],
        "qcn": [sys.executable, "-m", "qcn"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    }
    if "train" in words and "--resume" not in words:
        words += ["--size", "28", "--batch-size", "16", *([] if "--epochs" in words else ["--epochs", "1"])]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.run(
        [*programs[words[0]], *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def commands(heading: str) -> list[str]:
    """The command lines under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    text = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def run_well(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    done = run(folder, line)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done


@pytest.mark.slow
def test_another_routing_rule(folder: Path) -> None:
    train, _, evaluate, *_ = commands("Another routing rule")
    trained = run_well(folder, train)
    assert "routing: by a rule of your own, agreement, in plain torch" in trained.stderr
    assert trained.stdout.endswith("next: python idea.py evaluate runs/mine\n")  # its rule cannot be exported
    again = run(folder, train)
    assert again.returncode == 2
    assert "continue it with `python idea.py train --resume runs/mine`" in again.stderr
    assert "next:" not in run_well(folder, evaluate).stdout
    run_well(folder, "python gradients.py")
    with pytest.raises(UsageError, match=r"no model named 'mine'.*python FILE.py … \(docs/ideas.md\)"):
        load_network(folder / "runs" / "mine")  # by a command that does not know the file


@pytest.mark.slow  # starts and trains seven times
def test_a_rule_by_every_command_of_the_page(folder: Path) -> None:
    lines = [line.replace("runs/mine", "runs/again") for line in commands("Another routing rule")]
    assert len(lines) == 5
    for line in lines:
        run_well(folder, line)
    printed = run_well(folder, "python ablation.py").stdout
    assert re.findall(r"^(\d) \[[\d.]+\]$", printed, re.MULTILINE) == ["1", "2", "3"]
    done = run(folder, "python idea.py export runs/again --format native --out runs/none")
    assert done.returncode == 2
    assert "capsules1 cannot be exported: it has its own routing rule" in done.stderr


@pytest.mark.parametrize(
    "heading", [pytest.param("Another network, carried to the device", marks=pytest.mark.slow), "Another backbone"]
)
def test_another_network_is_carried_to_the_device(folder: Path, heading: str) -> None:
    lines = commands(heading)
    assert [line.split()[0] for line in lines] == ["python", "python", "qcn"]
    *_, verified = [run_well(folder, line) for line in lines]
    assert "passed: all" in verified.stdout


def test_a_rule_takes_the_place_of_em_routing() -> None:
    torch.manual_seed(0)
    network = qcn_tiny(1, 3).eval()
    image = torch.randn(2, 1, 28, 28)
    calls = []

    def counted(*inputs: torch.Tensor, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(options)
        return em_routing(*inputs, **options)  # type: ignore[arg-type]

    expected = network(image)
    for layer in capsule_layers(network):
        layer.rule = counted
    found = network(image)
    assert calls == [{"iterations": 2, "mode": "logistic"}] * 3
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert routed_by(network) == "by a rule of your own, counted, in plain torch"
    with pytest.raises(UsageError, match="capsules1 cannot be exported: it has its own routing rule"):
        lower(network, 28, 28)


def test_a_module_as_a_rule_has_parameters_of_its_own() -> None:
    class Sharper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(()))

        def forward(self, pose: torch.Tensor, *rest: torch.Tensor, **options: object) -> tuple[torch.Tensor, ...]:
            return em_routing(pose * self.gain, *rest, **options)  # type: ignore[arg-type]

    network = qcn_tiny(1, 3)
    for layer in capsule_layers(network):
        layer.rule = Sharper()
    network(torch.randn(2, 1, 28, 28)).logit.sum().backward()
    gains = [value for name, value in network.named_parameters() if name.endswith("rule.gain")]
    assert len(gains) == 3 and all(gain.grad is not None for gain in gains)


def test_a_rule_that_answers_in_another_shape_is_refused() -> None:
    network = qcn_tiny(1, 3)
    for layer in capsule_layers(network):
        layer.rule = lambda pose, activation, *rest, **options: (pose, activation)
    with pytest.raises(UsageError, match=r"a rule's pose must be \[36, 8, 3\], not \[36, 72, 3\]"):
        network(torch.randn(1, 1, 28, 28))
