"""The budget of the tests: a run that took too long, or skipped what it should not, fails CI."""

from pathlib import Path

import pytest
from times import main

CASE = '<testcase classname="tests.test_a" name="test_{name}" time="1"><properties><property name="cpu" value="{cpu}"/>'
SKIP = '<skipped type="pytest.skip" message="{why}"/>'


def junit(folder: Path, **cases: tuple[float, str]) -> str:
    inside = "".join(
        CASE.format(name=name, cpu=cpu) + "</properties>" + (SKIP.format(why=why) if why else "") + "</testcase>"
        for name, (cpu, why) in cases.items()
    )
    (folder / "test.xml").write_text(f"<testsuites><testsuite>{inside}</testsuite></testsuites>")
    return str(folder / "test.xml")


def test_the_slowest_come_first_with_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([junit(tmp_path, quick=(0.5, ""), slow=(9.0, ""))]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert "test_slow" in first and "test_quick" in second and "9.5 s CPU" in total and "2 tests" in total


@pytest.mark.parametrize(("cpu", "code"), [(14.0, 0), (16.0, 1)])
def test_half_as_much_again_as_the_budget_fails(tmp_path: Path, cpu: float, code: int) -> None:
    assert main([junit(tmp_path, one=(cpu, "")), "--budget", "10"]) == code


@pytest.mark.parametrize(("why", "code"), [("no CUDA device", 0), ("no ffmpeg", 1)])
def test_a_skip_that_is_not_expected_fails(tmp_path: Path, why: str, code: int) -> None:
    (tmp_path / "skips").write_text("# those\n\nno CUDA\n")
    assert main([junit(tmp_path, one=(0.0, why)), "--skips", str(tmp_path / "skips")]) == code
