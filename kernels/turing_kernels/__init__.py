"""Tensor operations: the torch reference and the native library."""
