"""Receipts: what a backend really runs each operation of a bundle in, beside what its program asks for.

    receipts(bundle, "onnxruntime")     ->  [Receipt("pose.0.conv1", "int8", "int8", "ConvInteger"), …]

A convolution that was asked for in int8 and runs in anything else is a fall-back (`require_met`). A capsule layer in
fp16 that runs in float32 is not: where kernels have no half precision, its numbers are still rounded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qcn.errors import CheckFailed, UsageError
from qcn.export.backends import BACKENDS, find
from qcn.export.backends.definition import load
from qcn.export.bundle import Bundle
from qcn.export.program.program import Operation


@dataclass(frozen=True)
class Receipt:
    """An operation, the precision that was asked for, the one that it was seen to run in, and by which kernels."""

    operation: str
    asked: str
    ran: str
    by: str

    @property
    def met(self) -> bool:
        return self.ran == self.asked or (self.asked, self.ran) == ("fp16", "fp32")


def receipts(bundle: Bundle, backend: str) -> list[Receipt]:
    """One for each convolution, linear and capsule layer, in their order."""
    if not (result := find(backend)).receipts:
        able = [name for name, one in BACKENDS.items() if one.receipts]
        raise UsageError(f"receipts exist for {', '.join(able)}, not for {backend}")
    return list(load(result.receipts)(bundle))


def require_met(receipts: Sequence[Receipt]) -> None:
    """Refuse operations that fell back to another precision."""
    if fallen := [receipt for receipt in receipts if not receipt.met]:
        first = fallen[0]
        raise CheckFailed(
            f"{len(fallen)} of {len(receipts)} operations do not run in the requested precision: {first.operation} "
            f"should run in {first.asked}, but runs in {first.ran} ({first.by})"
        )


def receipt_of(op: Operation, types: Iterable[str], kernels: Iterable[str], names: Mapping[str, str]) -> Receipt:
    """Make a receipt from the input types of an operation's kernels; `names` maps the backend's types to ours."""
    ran = " and ".join(sorted({names.get(one, one) for one in types}))
    return Receipt(op.name, op.precision, ran or "nothing seen", ", ".join(sorted(set(kernels))) or "no kernel")
