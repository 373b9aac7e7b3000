"""QONNX files as graphs."""
