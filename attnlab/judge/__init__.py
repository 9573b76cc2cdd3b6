"""Kernels that programs wrote: each in a sandbox, every call on inputs of its own, a score that chance cannot win."""
