"""The pytest face: options, a harness that lives for a session, and the way into pytest-benchmark."""
