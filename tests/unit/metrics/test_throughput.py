from xrex.metrics.throughput import Rates, Throughput


def test_rates_are_those_of_the_interval_and_the_next_starts_at_nought():
    throughput = Throughput(now_s=100.0)
    throughput.add(examples=128, waited_s=0.5)
    throughput.add(examples=128, waited_s=0.5)
    assert throughput.take(now_s=104.0) == Rates(examples_per_s=64.0, input_wait_share=0.25)
    throughput.add(examples=10, waited_s=0.0)
    assert throughput.take(now_s=105.0) == Rates(examples_per_s=10.0, input_wait_share=0.0)


def test_no_time_gives_no_rate():
    assert Throughput(now_s=5.0).take(now_s=5.0) == Rates(0.0, 0.0)
