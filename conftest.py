"""One plugin serves `tests/` and `suites/`; naming it on the command line too (`-p`) loads it no second time."""

pytest_plugins = ["attnlab.pytest_plugin", "pytester"]
