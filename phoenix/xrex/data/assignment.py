"""Which process reads which partition."""


def partitions_of(num_partitions: int, process_index: int, process_count: int) -> list[int]:
    """The partitions that this process reads, ascending: every process_count-th one, so that each partition belongs to
    exactly one process and no two processes differ by more than one. A pure function: all processes agree unasked.
    """
    return list(range(process_index, num_partitions, process_count))
