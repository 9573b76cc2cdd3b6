"""Load the plugin for `tests/` and `suites/`. If it is also named on the command line (`-p`), it is loaded once."""

pytest_plugins = ["attnlab.pytest_plugin", "pytester"]
