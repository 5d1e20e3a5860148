"""Which process reads which partition."""


def reader_of(partition: int, process_count: int) -> int:
    """The process that reads a partition."""
    return partition % process_count


def partitions_of(num_partitions: int, process_index: int, process_count: int) -> list[int]:
    """The partitions that this process reads, ascending: every process_count-th one, so that each partition belongs to
    exactly one process and no two processes differ by more than one. A pure function: all processes agree unasked.
    """
    return [partition for partition in range(num_partitions) if reader_of(partition, process_count) == process_index]
