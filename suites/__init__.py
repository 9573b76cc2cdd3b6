"""The experiments: pytest-benchmark and numerical suites."""
