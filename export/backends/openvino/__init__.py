"""OpenVINO on CPUs: its IR, model.xml and model.bin, made from the ONNX graph in a style of its own."""

from qcn.export.backends.definition import IN_GRAPHS, Backend, FileFormat, Piece, Registration

INSTALL = "pip install openvino"

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "openvino",
            "model*.xml",
            "openvino.format:GRAPH",
            "openvino.precision:read",
            options=IN_GRAPHS,
            hints=dict.fromkeys(("ir", "vino", "intel"), "OpenVINO's IR is --format openvino"),
            routing=9,  # two of the three products of the first M-step are in 4 parts (`layers`)
        ),
        FileFormat("openvino-weights", "model*.bin", "openvino.format:WEIGHTS", made_by="openvino", part_of="openvino"),
    ),
    backends=(
        Backend(
            "openvino",
            ("openvino",),
            "openvino.runner:OpenVinoRunner",
            shows_layers=True,
            isolated=True,
            loads=True,
            lowers=("int8",),
            receipts="openvino.runner:receipts",
        ),
    ),
    pieces=(Piece("OpenVINO", "OpenVINO's graphs (--format openvino)", INSTALL, ("openvino",)),),
)
