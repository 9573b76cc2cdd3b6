"""Many small non-negative least squares problems at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: corrections of a solution by the equations' residual, after which it is as exact as one by orthogonal factors
_CORRECTIONS = 2
#: so many problems are solved faster one by one than by each set of columns for all at once
_FEW = 40


def solve(terms: Floats, values: Floats) -> Floats:
    """The x >= 0 that makes |terms x - values| least, of each problem of a batch: (problems, unknowns).

    terms : (problems, equations, unknowns), of no more than four or so unknowns; a column of zeros has the unknown 0.
    values : (problems, equations)

    The solution is the best of those without a negative part among the free least squares solutions by each set of
    columns (Lawson and Hanson 1974, chapter 23: at the solution the unknowns that are not 0 solve the free problem of
    their columns); where the one by all columns has no negative part it is the best. They come from normal equations
    with columns of length 1, corrected by the residual. Where columns depend on each other, one of the best is given.
    """
    scale = np.linalg.norm(terms, axis=1)
    scale[scale == 0] = 1.0
    columns = terms / scale[:, None]
    try:
        best = _free(columns, values, range(columns.shape[2]), _products(columns))
        rest = np.flatnonzero((best < 0).any(axis=1))
        few = len(rest) <= _FEW
        best[rest] = (_one_by_one if few else _best_of_fewer)(columns[rest], values[rest])
    except np.linalg.LinAlgError:
        best = _one_by_one(columns, values)
    found: Floats = best / scale
    return found


def _one_by_one(columns: Floats, values: Floats) -> Floats:
    from scipy.optimize import nnls

    found = [nnls(matrix, wanted)[0] for matrix, wanted in zip(columns, values, strict=True)]
    return np.array(found).reshape(columns.shape[::2])


def _best_of_fewer(columns: Floats, values: Floats) -> Floats:
    """The best solution without a negative part by fewer than all columns, of each problem."""
    best = np.zeros(columns.shape[::2])
    least = (values**2).sum(axis=1)
    products = _products(columns)
    there = np.flatnonzero(columns.any(axis=(0, 1))).tolist()  # a column of zeros adds nothing to a set
    for size in range(1, len(there)):
        for taken in itertools.combinations(there, size):
            solution = _free(columns, values, taken, products)
            error = (_residual(columns, values, solution) ** 2).sum(axis=1)
            better = (solution >= 0).all(axis=1) & (error < least)
            best[better], least[better] = solution[better], error[better]
    return best


def _products(columns: Floats) -> Floats:
    """Of each column with each, (problems, unknowns, unknowns)."""
    found: Floats = columns.transpose(0, 2, 1) @ columns
    return found


def _free(columns: Floats, values: Floats, used: Sequence[int], products: Floats) -> Floats:
    """The least squares solutions by the columns `used`, 0 for the others and for columns of zeros."""
    turned = columns.transpose(0, 2, 1)
    matrix = products[:, used][:, :, used]
    diagonal = np.einsum("bii->bi", matrix)
    diagonal[diagonal == 0] = 1.0
    solution = np.zeros(columns.shape[::2])
    for _ in range(1 + _CORRECTIONS):
        left = turned @ _residual(columns, values, solution)[..., None]
        solution[:, used] += np.linalg.solve(matrix, left[:, used])[..., 0]
    return solution


def _residual(columns: Floats, values: Floats, solution: Floats) -> Floats:
    found: Floats = values - (columns @ solution[..., None])[..., 0]
    return found
