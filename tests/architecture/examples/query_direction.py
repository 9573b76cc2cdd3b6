"""A new timed direction: the gradient of the query alone, as where key and value come from a frozen model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnlab.contract.directions import GRADIENTS, Direction
from attnlab.contract.library import Arrays, Call, Library


def _of_query(library: Library, attend: Callable[..., Any], arrays: Arrays, upstream: Any) -> Call:
    query, key, value = arrays
    call = library.backward_call(lambda leaf: attend(leaf, key, value), (query,), upstream)
    return lambda: call()[0]


#: three products: the scores again, the gradient of the weights, that of the query
OF_QUERY = Direction("query_only", GRADIENTS[:1], 1.5, True, _of_query)
