"""Which network figures are of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """The name of a bundle, and the hash of the network in it (`Manifest.network_sha256`)."""

    bundle: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.bundle} (network {self.sha256[:12]}…)"
