"""The two files of every bundle: the weights for libqcn, and the golden answers."""

from qcn.errors import MissingError
from qcn.export.backends.format import Format, Job, Made, Support
from qcn.export.backends.native.runner import receipts
from qcn.export.backends.precision import Seen
from qcn.export.bundle import Artefact, Bundle
from qcn.export.program.program import Program
from qcn.libqcn.location import BUILD, find_library, load_library


class Weights(Format):
    """They are there already: every bundle is made with them."""

    def make(self, job: Job) -> Made:
        artefact = job.bundle.find(self.data.file)
        job.bundle.read(artefact)
        return Made(self.name, artefact)

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        try:
            load_library("qcn_model_load_memory")
        except MissingError as error:
            return Support("cannot", str(error), BUILD)
        result = receipts(bundle) if bundle.program().calibrated else []
        lower = sorted({f"{of.asked} as {of.ran} by {of.by}" for of in result if of.asked != "fp32"})
        return Support("runs", "; ".join([f"by libqcn, {find_library()}", *lower]))


class GoldenAnswers(Format):
    def seen(self, content: bytes, program: Program) -> Seen:
        return Seen("fp64")

    def support(self, artefact: Artefact, bundle: Bundle) -> Support:
        return Support("intact", f"{len(bundle.golden().rows)} images with the reference's answers")


def library() -> str:
    """The path of libqcn; empty if there is none."""
    try:
        return str(find_library())
    except MissingError:
        return ""


WEIGHTS, GOLDEN = Weights("native"), GoldenAnswers("golden")
