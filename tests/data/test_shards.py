"""Shards: several arrays behave as one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unflip.data.arrays import Shards


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
def test_rows_are_those_of_the_whole_array(lengths: list[int], data: st.DataObject) -> None:
    whole = np.arange(2 * sum(lengths)).reshape(-1, 2)
    shards = Shards(np.split(whole, np.cumsum(lengths)[:-1]))
    count = len(whole)
    assert (shards.shape, shards.dtype, shards.ndim, len(shards)) == (whole.shape, whole.dtype, 2, count)
    np.testing.assert_array_equal(np.asarray(shards), whole)
    start, stop = data.draw(st.integers(-3, count + 3)), data.draw(st.integers(-3, count + 3))
    np.testing.assert_array_equal(np.asarray(shards[start:stop]), whole[start:stop])
    np.testing.assert_array_equal(np.asarray(shards[start:stop][1:]), whole[start:stop][1:])
    if count:
        rows = np.array(data.draw(st.lists(st.integers(0, count - 1))), np.int64)
        np.testing.assert_array_equal(shards[rows], whole[rows])
        np.testing.assert_array_equal(shards[whole[:, 0] % 4 == 0], whole[whole[:, 0] % 4 == 0])
