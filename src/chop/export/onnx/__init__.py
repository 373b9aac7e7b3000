"""ONNX and QONNX: integer programs written as such files, and QONNX files read as graphs."""
