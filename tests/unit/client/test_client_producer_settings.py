"""A producer's settings: what fits together, and what is said about what does not."""

from __future__ import annotations

import pytest

from coterie.client.errors import WrongSetting
from coterie.client.producer.settings import ProducerSettings


def settings(**given):
    return ProducerSettings.of(bootstrap_servers="127.0.0.1:9092", **given)


def test_the_defaults_are_kafkas():
    made = settings()

    assert (made.acks_number, made.idempotent, made.codec) == (-1, True, "none")
    assert (made.batch_size, made.linger_ms, made.buffer_memory) == (16_384, 5, 33_554_432)
    assert (made.delivery_timeout_ms, made.request_timeout_ms, made.max_block_ms) == (120_000, 30_000, 60_000)
    assert (made.max_request_size, made.max_in_flight_requests_per_connection) == (1_048_576, 5)


@pytest.mark.parametrize(
    ("unknown", "known"),
    [("lingerms", "linger_ms"), ("compression", "compression_type")],
)
def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(unknown, known):
    with pytest.raises(WrongSetting, match=f"no setting {unknown}; did you mean {known}"):
        settings(**{unknown: 1})


def test_a_setting_that_resembles_none_is_refused_without_a_guess():
    with pytest.raises(WrongSetting, match=r"no setting zzz$"):
        settings(zzz=1)


def test_bootstrap_servers_have_to_be_given():
    with pytest.raises(WrongSetting, match="bootstrap_servers must be set"):
        ProducerSettings.of()


@pytest.mark.parametrize("given", [{"acks": 1}, {"acks": 0}, {"retries": 0}])
def test_idempotence_gives_way_to_settings_that_do_not_allow_it(given):
    assert settings(**given).idempotent is False


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"acks": 2}, "acks must be 'all', 1 or 0, not 2"),
        ({"compression_type": "brotli"}, "'none', 'gzip', 'snappy', 'lz4', 'zstd'"),
        ({"linger_ms": -1}, "linger_ms must be at least 0, not -1"),
        ({"batch_size": "many"}, "batch_size must be a whole number"),
        ({"enable_idempotence": True, "acks": 1}, "needs acks='all'"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"transactional_id": "tx", "acks": 1}, "transactional_id needs enable_idempotence"),
        ({"delivery_timeout_ms": 10_000}, "must be at least linger_ms \\+ request"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, what):
    with pytest.raises(WrongSetting, match=what):
        settings(**given)
