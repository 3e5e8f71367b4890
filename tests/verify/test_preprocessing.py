"""Pictures of other sizes than the golden images' are pre-processed as defined, or the manifest's verdict says so."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qcn.errors import MissingError
from qcn.export.backends.native.runner import NativeRunner
from qcn.export.bundle import Bundle
from qcn.libqcn.location import load_library
from qcn.verify.parity import preprocessing
from qcn.verify.parity.preprocessing import OTHER_SIZES, check_preprocessing


@pytest.fixture(autouse=True)
def _built() -> None:
    try:
        load_library()
    except MissingError as error:
        pytest.skip(str(error))


def test_libqcn_fits_pictures_as_defined(bundle: Bundle) -> None:
    verdict = check_preprocessing(bundle)
    assert (verdict.status, verdict.reasons, verdict.first_wrong) == ("passed", (), None)
    assert not verdict.runner.startswith("torch")


@pytest.mark.parametrize("wrong", OTHER_SIZES)
def test_a_library_that_fits_one_size_otherwise_is_found(
    bundle: Bundle, wrong: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = NativeRunner.preprocess

    def planted(self: NativeRunner, images: NDArray[Any]) -> NDArray[np.float32]:
        found = honest(self, images)
        if images.shape[2:] == wrong:
            found[0, 0, 0, 0] = np.nextafter(found[0, 0, 0, 0], np.float32(np.inf))
        return found

    monkeypatch.setattr(NativeRunner, "preprocess", planted)
    verdict = check_preprocessing(bundle)
    assert (verdict.status, verdict.first_wrong) == ("failed", "picture")
    assert verdict.reasons == (
        f"libqcn makes of a picture of {wrong[1]}×{wrong[0]} something else than docs/bundle.md defines",
    )
    monkeypatch.setattr(preprocessing, "installed", lambda name: False)  # a device without Pillow
    assert check_preprocessing(bundle).status == "passed"
