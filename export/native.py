"""weights.safetensors: the deployment form on disk, for libqcn and for making ONNX where there is no torch.

The arrays under the names of `qcn.export.network`, and with them (`qcn.export.arrays`) a text `structure`, which is
`Structure.to_json()`: how they make a network.
"""

import json
from pathlib import Path

from qcn.errors import UsageError
from qcn.export.arrays import read_arrays, write_arrays
from qcn.export.network import Network, Structure

SCHEMA = "1"


def write(path: Path, network: Network) -> None:
    """Write the network to `path`."""
    write_arrays(path, network.arrays, SCHEMA, structure=json.dumps(network.structure.to_json()))


def read(path: Path) -> Network:
    """The network in `path`; what is not one is refused."""
    try:
        arrays, texts = read_arrays(path, SCHEMA)
        return Network(Structure.from_json(json.loads(texts.get("structure", "null"))), arrays)
    except (UsageError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a network in deployment form: {error}") from error
