"""The pytest face: options, a laboratory that lives for a session, and the way into pytest-benchmark."""
