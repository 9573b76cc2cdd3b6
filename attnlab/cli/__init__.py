"""The `attnlab` command: what a person types, and what is printed."""
