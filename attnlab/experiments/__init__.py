"""Experiments that hold theory against measurement, through the backends."""
