"""Tests and suites share one plugin. Ending in its name, `pytest -p attnlab.fixtures` loads it no second time."""

pytest_plugins = ["attnlab.fixtures", "pytester"]
