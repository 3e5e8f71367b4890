"""What LiteRT runs each operation in: what the file says, if LiteRT is seen to multiply int8 weights in integers."""

from qcn.errors import MissingError
from qcn.export.backends import FORMATS
from qcn.export.backends.litert import INSTALL
from qcn.export.backends.litert.precision import read
from qcn.export.backends.precision import seen
from qcn.export.backends.receipts import Receipt
from qcn.export.bundle import Bundle
from qcn.export.program.program import Convolution, Product, Route
from qcn.packages import installed


def receipts(bundle: Bundle) -> list[Receipt]:
    """Votes are float32 in every plan."""
    if not installed("ai_edge_litert"):
        raise MissingError(f"LiteRT is not installed: {INSTALL}")
    from qcn.export.backends.litert.integers import multiplies_integers

    program, kind = bundle.program(), FORMATS["litert"]
    content = bundle.read(bundle.find(kind.file_in(program.precision)))
    as_planned = seen(read, content, program, kind.routing).precision == program.precision
    result = []
    for op in program.operations:
        if isinstance(op, Route):
            result.append(Receipt(op.name, op.precision, "fp32", "BATCH_MATMUL"))
        elif isinstance(op, Product):
            ran = op.precision if as_planned and multiplies_integers() else "fp32"
            result.append(Receipt(op.name, op.precision, ran, _operator(op)))
    return result


def _operator(op: Product) -> str:
    if isinstance(op, Convolution):
        return "DEPTHWISE_CONV_2D" if op.depthwise else "CONV_2D"
    return "FULLY_CONNECTED"
