"""Integer programs as ONNX and QONNX files."""
