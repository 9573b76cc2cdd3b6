"""Judges kernels that programs wrote: a sandbox for each, new inputs for every call, a score that allows for luck."""
