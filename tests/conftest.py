"""Property tests have no deadline of their own: how fast a machine is must not decide whether a test passes."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("attnlab", deadline=None)
settings.load_profile("attnlab")
