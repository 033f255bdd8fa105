"""Decision trees over numbers: where an example ends, and how leaves are split by histograms.

A node is a number: the root is 1, and below n are 2 n (the value of the node's attribute is below
its threshold) and 2 n + 1.

Law: thresholds are edges of bins, so the numbers of examples on both sides are exact, and the split
of a leaf is the best one at these edges. Of equal splits the first attribute counts, then the least
threshold.
Source: Ben-Haim and Tom-Tov, JMLR 2010 (a leaf is split by histograms of each attribute and class);
the Gini impurity is one of the two that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: (attributes (n,), examples (n,)) -> values (n,).
Values = Callable[[Ints, Ints], Floats]
#: The least decrease of impurity, in examples, for which a leaf is split: more than chance makes.
LEAST_GAIN = 20.0


class Split(NamedTuple):
    """What a node asks: whether the value of `attribute` is below `threshold`."""

    attribute: int
    threshold: float


@dataclass(frozen=True)
class Tree:
    """The splits of inner nodes by node, and the most frequent class of each leaf."""

    splits: tuple[tuple[int, Split], ...] = ()
    classes: tuple[tuple[int, int], ...] = ()

    def leaves_of(self, examples: Ints, values: Values) -> Ints:
        """(n,) examples -> the leaf of each."""
        at = np.ones(len(examples), np.int64)
        for node, split in self.splits:  # a node comes before those below it
            rows = np.flatnonzero(at == node)
            values_there = values(np.full(len(rows), split.attribute), examples[rows])
            at[rows] = 2 * node + (values_there >= split.threshold)
        return at

    def classes_of(self, examples: Ints, values: Values) -> Ints:
        """(n,) examples -> the class of the leaf of each."""
        leaves, classes = (np.array(column) for column in zip(*self.classes, strict=True))
        return np.asarray(classes[np.searchsorted(leaves, self.leaves_of(examples, values))])

    @property
    def lines(self) -> list[str]:
        """The tree for people, a line for each split."""
        return [
            f"node {node}: attribute {split.attribute} < {split.threshold:g} ? "
            f"{2 * node} : {2 * node + 1}"
            for node, split in self.splits
        ]


#: The tree that is one leaf.
ROOT = Tree()


class Counted(NamedTuple):
    """A histogram of one attribute at one leaf: edges (m,) of bins, and counts (classes, m)."""

    lowers: Floats
    uppers: Floats
    counts: Ints


def counted(histograms: Mapping[int, list[dict[str, float]]], classes: int) -> Counted:
    """Histograms by class -> one table on the coarsest of their grids, on which all lie."""
    bins = [(group, bin_) for group, bins_there in histograms.items() for bin_ in bins_there]
    of = np.array([group for group, _ in bins])
    lowers, uppers, n = (np.array([b[name] for _, b in bins]) for name in ("lower", "upper", "n"))
    width = (uppers - lowers).max()
    cells, place = np.unique(np.floor(lowers / width), return_inverse=True)
    counts = np.zeros((classes, len(cells)), np.int64)
    np.add.at(counts, (of, place), n.astype(np.int64))
    return Counted(cells * width, (cells + 1) * width, counts)


def best_split(attributes: Mapping[int, Counted]) -> Split | None:
    """The split of a leaf that lowers the impurity most; None: by LEAST_GAIN at most."""
    best, split = LEAST_GAIN, None
    for attribute in sorted(attributes):
        table = attributes[attribute]
        below = table.counts.cumsum(axis=1)
        gains = _impurity(table.counts.sum(axis=1)) - _impurity(below)
        gains = gains - _impurity(table.counts.sum(axis=1, keepdims=True) - below)
        if gains.max() > best:
            best = float(gains.max())
            split = Split(attribute, float(table.uppers[gains.argmax()]))
    return split


def _impurity(counts: Ints) -> Floats:
    """(classes, ..) counts -> the Gini impurity, times the number of examples."""
    total = counts.sum(axis=0)
    return np.asarray(total - (counts.astype(float) ** 2).sum(axis=0) / np.maximum(total, 1))


def grown(tree: Tree, leaves: Mapping[int, Mapping[int, Counted]]) -> Tree:
    """The tree with its leaves split, by the histograms of each leaf and attribute."""
    splits, classes = list(tree.splits), dict(tree.classes)
    for leaf in sorted(leaves):
        tables = leaves[leaf]
        split = best_split(tables)
        if split is None:
            classes[leaf] = _most(sum(table.counts.sum(axis=1) for table in tables.values()))
            continue
        table = tables[split.attribute]
        below = table.uppers <= split.threshold
        splits.append((leaf, split))
        classes.pop(leaf, None)
        classes[2 * leaf] = _most(table.counts[:, below].sum(axis=1))
        classes[2 * leaf + 1] = _most(table.counts[:, ~below].sum(axis=1))
    return Tree(tuple(splits), tuple(sorted(classes.items())))


def _most(counts: Any) -> int:
    """The most frequent class; of equal ones the first."""
    return int(np.argmax(counts))
