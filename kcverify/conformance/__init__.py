"""Kernel contracts that run: twelve classes, derived tolerances, calibration, real kernels."""
