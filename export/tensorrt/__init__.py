"""TensorRT: find it, build an engine from an ONNX graph, and prove the precision that the engine computes in."""
