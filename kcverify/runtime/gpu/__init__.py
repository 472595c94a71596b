"""Triton kernels of the row statistics.

`tiles`, `rows`, `finish` and `statistics` import Triton; `launch` loads them at first use.
"""
