"""Which sample goes into which split: the same for a seed, each class in proportion, no sample in two splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Split = Literal["train", "calibration", "valid", "test"]

#: In the order in which they are filled. A sample that occurs twice stays in the first of them, so that what is
#: measured on is never what was trained on.
FILL_ORDER: tuple[Split, ...] = ("test", "valid", "calibration", "train")


def stratified_order(labels: Sequence[int], seed: int) -> npt.NDArray[np.int64]:
    """Order samples so that every stretch of them holds the classes in nearly their proportion.

    Within a class the order is random; the k-th of a class's n samples takes a random place in the k-th of n equal
    parts of the whole. Splits may then be cut off one after another, also where some samples turn out to be unusable.

    Parameters
    ----------
    labels
        Class of each of the N samples.
    seed
        Equal seeds give equal orders.

    Returns
    -------
    int64 [N]
        A permutation of 0…N-1.
    """
    rng = np.random.default_rng(seed)
    classes = np.asarray(labels, dtype=np.int64)
    place = np.empty(len(classes), dtype=np.float64)
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        place[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(place, kind="stable")
