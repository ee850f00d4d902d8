"""Measures batching policies against each other, on one model, one machine and the same kernels."""
