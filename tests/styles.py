"""The styles of ONNX graphs by name."""

from qcn.export.backends.onnx.build import FUSED, UNROLLED
from qcn.export.backends.openvino.layers import STYLE as OPENVINO
from qcn.export.backends.tensorrt.layers import STYLE as TENSORRT

STYLES = {"unrolled": UNROLLED, "openvino": OPENVINO, "tensorrt": TENSORRT, "fused": FUSED}
