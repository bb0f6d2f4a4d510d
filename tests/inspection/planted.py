"""Objects planted on a background, each in a subspace of its own, and MaskCut's rules patch by patch."""

from __future__ import annotations

import numpy as np

BACKGROUND, DISC, BLOCK = 0, 1, 2


def labels_of(rows, columns):
    """A disc and a block that keep clear of the corners and of each other."""
    y, x = np.mgrid[:rows, :columns]
    labels = np.zeros((rows, columns), dtype=int)
    labels[(y - 0.35 * rows) ** 2 + (x - 0.3 * columns) ** 2 < (0.2 * min(rows, columns)) ** 2] = DISC
    labels[int(0.55 * rows) : int(0.9 * rows), int(0.55 * columns) : int(0.85 * columns)] = BLOCK
    return labels


def features_of(labels, seed, noise=0.05, width=41, rank=4):
    """f_i = U_k α_i + noise with α of mean zero: what lies in another subspace is at right angles, or nearly."""
    draw = np.random.default_rng(seed)
    frame = np.linalg.qr(draw.standard_normal((width, rank * (labels.max() + 1))))[0]
    bases = frame.reshape(width, -1, rank)
    codes = draw.standard_normal((labels.size, rank))
    rows = [bases[:, k] @ code for k, code in zip(labels.ravel(), codes, strict=True)]
    return np.stack(rows) + noise * draw.standard_normal((labels.size, width))


def random_affinity(seed):
    """A graph of 13 × 11 patches: planted parts of random size, with a share of edges flipped."""
    draw = np.random.default_rng(seed)
    rows, columns = 13, 11
    labels = np.zeros((rows, columns), dtype=int)
    for part in range(1, draw.integers(2, 4)):
        top, left = draw.integers(1, rows - 5), draw.integers(1, columns - 5)
        labels[top : top + draw.integers(3, 6), left : left + draw.integers(3, 6)] = part
    same = labels.ravel()[:, None] == labels.ravel()
    flip = np.triu(draw.random(same.shape) < draw.uniform(0.02, 0.2), 1)
    return np.where(same ^ (flip | flip.T), 1.0, 1e-5), (rows, columns)


def naive_mask(vector, grid):
    """The foreground's piece around its strongest patch, patch by patch; the same for a vector and its negative."""
    rows, columns = grid
    v = [[float(vector[r * columns + c]) for c in range(columns)] for r in range(rows)]
    mean = sum(map(sum, v)) / (rows * columns)
    corners = sum(v[r][c] > mean for r in (0, rows - 1) for c in (0, columns - 1))
    places = [(r, c) for r in range(rows) for c in range(columns)]
    strongest = max(places, key=lambda place: abs(v[place[0]][place[1]]))
    keep = v[strongest[0]][strongest[1]] > mean if corners == 2 else corners < 2
    sign = 1 if keep else -1
    todo = [max(places, key=lambda place: sign * v[place[0]][place[1]])]
    seen = set()
    while todo:
        r, c = todo.pop()
        if (r, c) in seen or not (0 <= r < rows and 0 <= c < columns) or sign * (v[r][c] - mean) <= 0:
            continue
        seen.add((r, c))
        todo += [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
    return np.array([[(r, c) in seen for c in range(columns)] for r in range(rows)])
