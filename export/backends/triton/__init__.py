"""A model repository for Triton Inference Server, as one file of a bundle: triton.tar. No torch here.

    NAME/              ensemble: pixels [B, C, H, W] uint8 in, the network's answers out   labels.txt  the classes
    NAME-preprocess/   the bundle's pre-processing as an ONNX graph, to the last bit
    NAME-network/      the bundle's model.onnx, byte for byte
    NAME-trt/, NAME-trt-network/   the same by the bundle's TensorRT engine, where there is one that Triton takes

`networks` says what is served, and `batching` how, from measured latencies; `preprocess` makes the graph, `config` the
texts, `repository` the tar. `runner` holds it against Triton's rules and runs it.
"""

from qcn.export.backends.definition import IN_GRAPHS, Backend, FileFormat, Piece, Registration

INSTALL = "pip install 'tritonclient[http]'"
WORDS = ("tritonserver", "serving", "server")

REGISTRATION = Registration(
    formats=(
        FileFormat(
            "triton",
            "triton*.tar",
            "triton.format:REPOSITORY",
            "triton.repository:read_products",
            in_all=False,  # the same files once more
            options=(*IN_GRAPHS, "benchmark"),
            hints=dict.fromkeys(WORDS, "a server's model repository is --format triton"),
        ),
    ),
    backends=(Backend("triton", ("triton",), "triton.runner:TritonRunner", isolated=True, timed=False),),
    pieces=(Piece("tritonclient", "checking a server's model repository", INSTALL, ("tritonclient",)),),
)
