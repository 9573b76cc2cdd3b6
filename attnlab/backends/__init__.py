"""Backends: what they are, how they are found, set and called; the libraries of arrays behind them."""
