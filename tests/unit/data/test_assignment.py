from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from xrex.data.assignment import partitions_of


@given(st.integers(1, 200), st.integers(1, 20))
def test_every_partition_belongs_to_exactly_one_process_and_none_has_two_more_than_another(partitions, processes):
    dealt = [partitions_of(partitions, i, processes) for i in range(processes)]
    assert sorted(chain.from_iterable(dealt)) == list(range(partitions))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_process_beyond_the_partitions_reads_none():
    assert partitions_of(1, 1, 2) == []
