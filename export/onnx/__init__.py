"""Programs as ONNX graphs. `build` writes a graph; the other modules are the three ways to write routing."""
