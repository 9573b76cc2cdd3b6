"""Questions and their right answers are kept for the next backend; this lets them go."""

from __future__ import annotations

from attnlab.accuracy.gradient_questions import pose_gradients
from attnlab.accuracy.metamorphic import relations
from attnlab.accuracy.questions import drawn_once, posed


def forget_all() -> None:
    """Free the drawn inputs too, which all dtypes share: some 100 MB."""
    forget()
    drawn_once.cache_clear()


def forget() -> None:
    """Free what has been posed so far: the references of one dtype take some 300 MB."""
    for kept in (posed, pose_gradients, relations):
        kept.cache_clear()
