"""Which network figures are of. Those of another are refused, where they would pass for this one's."""

from dataclasses import dataclass
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.bundle.manifest import Manifest


@dataclass(frozen=True)
class NetworkId:
    """The name of a bundle, and the hash of the network in it (`Manifest.network_sha256`)."""

    bundle: str
    sha256: str

    @staticmethod
    def of(manifest: Manifest) -> "NetworkId":
        return NetworkId(manifest.name, manifest.network_sha256)

    def __str__(self) -> str:
        return f"{self.bundle} (network {self.sha256[:12]}…)"


def check_baseline_network(path: Path, before: NetworkId, now: NetworkId, other_network: bool) -> None:
    """Refuse a baseline of another network, unless `other_network` allows it."""
    if before.sha256 != now.sha256 and not other_network:
        raise UsageError(f"{path} is of another network: {before}, not {now}; the setting other_network allows it")
