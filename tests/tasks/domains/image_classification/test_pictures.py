import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.domains.image_classification.pictures import stratified_order

labels = st.lists(st.integers(0, 4), min_size=1, max_size=200)


@given(labels, st.integers(0, 2**32 - 1))
def test_it_is_a_permutation_and_the_same_for_a_seed(labels, seed):
    order = stratified_order(labels, seed)

    assert sorted(order) == list(range(len(labels)))
    assert np.array_equal(order, stratified_order(labels, seed))


@given(labels, st.integers(0, 100), st.floats(0, 1))
def test_every_beginning_holds_each_class_in_proportion(labels, seed, share):
    ordered = np.asarray(labels)[stratified_order(labels, seed)]
    cut = round(share * len(labels))

    for label in set(labels):
        expected = cut * labels.count(label) / len(labels)
        # One of each class may be on the wrong side of the cut, and moves the cut by as many places.
        assert abs((ordered[:cut] == label).sum() - expected) <= 1 + len(set(labels))


def test_another_seed_gives_another_order():
    assert not np.array_equal(stratified_order([0] * 50, 0), stratified_order([0] * 50, 1))
