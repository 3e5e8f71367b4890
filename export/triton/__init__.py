"""A model repository for Triton Inference Server, as one file of a bundle: triton.tar. No torch here.

    NAME/              ensemble: pixels [B, C, H, W] uint8 in, the network's answers out   labels.txt  the classes
    NAME-preprocess/   the bundle's pre-processing as an ONNX graph, to the last bit
    NAME-network/      the bundle's model.onnx, byte for byte
    NAME-trt/, NAME-trt-network/   the same by the bundle's TensorRT engine, where there is one that Triton takes

`networks` says what is served, and `batching` how, from measured latencies; `preprocess` makes the graph, `config` the
texts, `repository` the tar. `qcn.verify.runners.triton` holds it against Triton's rules and runs it.
"""
