"""How often a process is asked to stop, by the signals that it hears."""

from coterie.base.signals import ONE_REQUEST_MS, StopRequests


def test_a_signal_that_comes_to_a_process_and_to_its_group_is_one_request():
    requests = StopRequests()

    assert [requests.hear(at) for at in (5_000, 5_000, 5_000 + ONE_REQUEST_MS - 1)] == [True, False, False]
    assert requests.count == 1


def test_a_signal_a_while_later_asks_once_more():
    requests = StopRequests()

    assert [requests.hear(at) for at in (0, ONE_REQUEST_MS)] == [True, True]
    assert requests.count == 2
