"""Leakscope beside the packages people would use otherwise, task by task; `python benchmarks/peers`."""
