"""Settings by Kafka's names: what is taken, and what is said of what is not."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.assign.model import RebalanceProtocol
from coterie.base.errors import CoterieError
from coterie.client.errors import WrongSetting
from coterie.client.net.addresses import Address
from coterie.client.net.client_credentials import ClientCredentials
from coterie.client.producer.settings import ProducerSettings
from coterie.client.settings import AdminSettings, ClientSettings, ConsumerSettings, duration_ms
from coterie.security.sasl import Credentials

HERE = "127.0.0.1:9092"
# What no request carries: it may have 64 bits.
LONG = {
    "buffer_memory", "linger_ms", "max_block_ms", "max_buffered_bytes", "metadata_max_age_ms",
    "partitioner_availability_timeout_ms", "retry_backoff_max_ms", "retry_backoff_ms",
}  # fmt: skip


BEARER = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
ENDPOINT = {"sasl_oauthbearer_token_endpoint_url": "https://idp/token"}


def a_token():
    return "abc"


def settings(**given):
    return ConsumerSettings.of(bootstrap_servers=HERE, **given)


def test_defaults_are_kafka_s():
    got = settings()

    assert (got.max_poll_records, got.fetch_max_bytes, got.max_partition_fetch_bytes) == (
        500,
        50 << 20,
        1 << 20,
    )
    assert (got.fetch_min_bytes, got.fetch_max_wait_ms) == (1, 500)
    assert (got.session_timeout_ms, got.heartbeat_interval_ms, got.max_poll_interval_ms) == (
        45_000, 3_000, 300_000,
    )  # fmt: skip
    assert (got.auto_offset_reset, got.isolation, got.enable_auto_commit) == ("latest", 0, True)
    assert [one.name for one in got.assignors()] == ["range", "cooperative-sticky"]


def test_values_may_be_texts_as_in_a_file():
    got = settings(
        max_poll_records="7", enable_auto_commit="False", partition_assignment_strategy="range, sticky"
    )

    assert (got.max_poll_records, got.enable_auto_commit) == (7, False)
    assert [one.name for one in got.assignors()] == ["range", "sticky"]


def test_a_word_that_is_left_empty_in_a_file_is_not_set():
    got = settings(ssl_truststore_type="", ssl_keystore_type="", ssl_endpoint_identification_algorithm="")

    assert (got.ssl_truststore_type, got.ssl_keystore_type) == (None, None)
    assert got.ssl_endpoint_identification_algorithm == ""  # which turns the check of names off


def test_servers_may_be_a_text_or_a_list():
    for servers in ("a:1,b:2", ["a:1", "b:2"]):
        assert ClientSettings.of(bootstrap_servers=servers).addresses == (Address("a", 1), Address("b", 2))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_pol_records": 5}, "no setting max_pol_records; did you mean max_poll_records?"),
        ({"fetch.min.bytes": 5}, "write fetch_min_bytes"),
        ({"reconnect_backoff_ms": 50}, "Kafka's Java clients that this client does not have"),
        ({"qqq": 1}, "there is no setting qqq$"),
        ({"key.deserializer": 1}, "no setting key.deserializer; write key_deserializer$"),
        ({"key.serializer": 1}, "^key.serializer is a setting of producers, not of this client; leave"),
        ({"auto-offset-reset": 1}, "no setting auto-offset-reset; write auto_offset_reset$"),
        ({"spring.kafka.consumer.group-id": 1}, "setting spring.kafka.consumer.group-id; write group_id$"),
        ({"spring.kafka.properties.fetch.min.bytes": 1}, "; write fetch_min_bytes$"),
        ({"groupId": 1}, "there is no setting groupId; write group_id$"),
        ({"send.buffer.bytes": 1}, "send.buffer.bytes is a setting of Kafka's Java clients"),
        ({"spring.kafka.producer.acks": 1}, "acks is a setting of producers, not of this client"),
        ({"num.partitions": 1}, "no setting num.partitions; a topic has so many as it is created with"),
        ({"maxPolRecords": 1}, "no setting maxPolRecords; did you mean max_poll_records?"),
        ({"linger_ms": 1}, "linger_ms is a setting of producers, not of this client; leave it out here$"),
        ({"max_poll_records": "many"}, "max_poll_records must be a whole number, not 'many'"),
        ({"max_poll_records": 0}, "max_poll_records must be at least 1"),
        ({"max_poll_records": True}, "max_poll_records cannot be True"),
        ({"enable_auto_commit": "perhaps"}, "enable_auto_commit must be true or false"),
        ({"group_id": 5}, "group_id cannot be 5"),
        ({"group_id": "\udc80"}, "group_id must be text that UTF-8 can write"),
        ({"client_id": "x" * 32_768}, "client_id must have at most 32767 bytes, not 32768"),
        ({"value_deserializer": "json"}, "cannot be 'json' (str); it takes a function, as bytes.decode, or"),
        ({"isolation_level": "read_commited"}, "did you mean 'read_committed'?"),
        ({"auto_offset_reset": "by_duration:1h"}, "'1h' is no duration"),
        ({"heartbeat_interval_ms": 45_000}, "must be less than session_timeout_ms"),
        ({"group_instance_id": "one"}, "without a group_id"),
        ({"group_id": "g", "group_instance_id": ""}, "group_instance_id must be 1 to 249 letters"),
        ({"group_id": "g", "group_instance_id": "x" * 250}, "group_instance_id must be 1 to 249 letters"),
        ({"group_id": "g", "group_instance_id": "a b"}, "not 'a b'; leave it out"),
        ({"group_id": "g", "group_instance_id": ".."}, "group_instance_id must be 1 to 249 letters"),
        ({"session_timeout_ms": 1 << 31}, "session_timeout_ms must be at most 2147483647, not 2147483648"),
        ({"retry_backoff_ms": -1}, "retry_backoff_ms must be at least 0, not -1"),
        ({"security_protocol": "TLS"}, "security_protocol must be one of"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "needs sasl_username and"),
        ({"sasl_mechanism": "PLAIN"}, "security_protocol is PLAINTEXT"),
        (BEARER, "OAUTHBEARER needs sasl_oauth_token_provider, a function that returns a token, or sasl_"),
        ({**BEARER, "sasl_oauth_token_provider": "tokens"}, "'tokens' names no function: write package."),
        ({**BEARER, "sasl_oauth_token_provider": 7}, "it takes a function, as a_module.a_function"),
        ({**BEARER, "sasl_oauth_token_provider": "json:x", **ENDPOINT}, "one of them"),
        ({**BEARER, **ENDPOINT}, "needs sasl_oauthbearer_client_credentials_client_id and"),
        ({**BEARER, "sasl_oauthbearer_token_endpoint_url": "idp/token"}, "must begin with https://"),
    ],
)  # fmt: skip
def test_what_nobody_can_mean_is_refused_with_what_to_write_instead(given, why):
    with pytest.raises(WrongSetting, match=re.sub(r"[?()]", r"\\\g<0>", why)):
        settings(**given)


@pytest.mark.parametrize("kind", [AdminSettings, ConsumerSettings, ProducerSettings])
def test_no_number_is_taken_that_a_request_has_no_room_for_nor_one_below_0(kind):
    for one in fields(kind):
        if one.type is not int:
            continue
        long = one.metadata.get("kind") == "long"
        assert long == (one.name in LONG)
        for odd in (-1, 1 << 63, 1 << 100) if long else (-1, 1 << 31, 1 << 63):
            with pytest.raises(WrongSetting, match=f"{one.name} must be at "):
                kind.of(bootstrap_servers=HERE, **{one.name: odd})


class Own:
    """An assignor of the application's."""

    name, protocols = "own", (RebalanceProtocol.EAGER,)

    def user_data(self, *, topics, owned, generation):
        return b""

    def assign(self, cluster, members):
        return {}

    def on_assignment(self, partitions, *, generation, member_id):
        pass


def test_assignors_are_named_as_kafka_does_or_brought_along():
    java = "org.apache.kafka.clients.consumer.RoundRobinAssignor"
    own = Own()

    assert [one.name for one in settings(partition_assignment_strategy=java).assignors()] == ["roundrobin"]
    assert settings(partition_assignment_strategy=[own, "range"]).assignors()[0] is own


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("rang", "there is no assignor 'rang'; there are cooperative-sticky, range, .*did you mean 'range'"),
        (["range", "stiky"], "did you mean 'sticky'"),
        ([Own], "is a class: make an object of it"),
        ([7], "7 is no assignor, it has no name"),
        ([], "names no assignor"),
        (["range", ""], "there is no assignor ''"),
    ],
)
def test_what_is_no_assignor_is_refused_before_anything_is_asked_of_a_broker(strategy, why):
    with pytest.raises(CoterieError, match=why):
        settings(partition_assignment_strategy=strategy)


@pytest.mark.parametrize("servers", ["localhost", "a:b", "a:1,b", "", ["a:1", "b:99999"]])
def test_an_address_that_is_none_is_refused_at_once(servers):
    with pytest.raises(CoterieError, match=r"write .*:"):
        ClientSettings.of(bootstrap_servers=servers)


def test_a_client_must_know_where_the_cluster_is():
    with pytest.raises(WrongSetting, match="bootstrap_servers must be set"):
        ConsumerSettings.of(group_id="g")


def test_credentials_come_from_plain_settings_or_from_kafka_s_jaas_text():
    jaas = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" '
        r'password="a\"b";'
    )
    scram = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}

    plainly = settings(**scram, sasl_username="me", sasl_password='a"b')
    by_jaas = settings(**scram, sasl_jaas_config=jaas)

    assert plainly.credentials() == by_jaas.credentials() == Credentials("SCRAM-SHA-512", "me", 'a"b')
    assert 'a"b' not in repr(plainly)
    assert "required" not in repr(by_jaas)


def test_tokens_come_from_a_function_by_its_name_or_as_it_is():
    by_name = settings(**BEARER, sasl_oauth_token_provider=f"{__name__}:a_token")
    as_it_is = settings(**BEARER, sasl_oauth_token_provider=a_token)

    for one in (by_name, as_it_is):
        assert one.credentials().exchange(5).first() == b"n,,\x01auth=Bearer abc\x01\x01"


def test_clients_with_one_provider_share_its_tokens():
    one, other = (settings(**BEARER, sasl_oauth_token_provider=f"{__name__}:a_token") for _ in range(2))

    assert one.security().credentials.source is other.security().credentials.source


def test_extensions_of_a_token_come_from_kafka_s_jaas_text():
    extended = settings(
        **BEARER,
        sasl_oauth_token_provider=a_token,
        sasl_jaas_config=(
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
            ' extension_logicalCluster="lkc-1";'
        ),
    )

    assert b"\x01logicalCluster=lkc-1\x01" in extended.credentials().exchange(5).first()


def test_a_token_endpoint_is_asked_with_what_settings_or_kafka_s_jaas_text_say():
    jaas = 'OAuthBearerLoginModule required clientId="me" clientSecret="it" scope="kafka";'
    named = {
        "sasl_oauthbearer_client_credentials_client_id": "me",
        "sasl_oauthbearer_client_credentials_client_secret": "it",
        "sasl_oauthbearer_scope": "kafka",
    }

    plainly = settings(**BEARER, **ENDPOINT, **named)
    by_jaas = settings(**BEARER, **ENDPOINT, sasl_jaas_config=jaas)

    for one in (plainly, by_jaas):
        provider = one.credentials().source._provider
        assert provider == ClientCredentials("https://idp/token", "me", "it", "kafka")
    assert "'it'" not in repr(plainly)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations_are_those_of_iso_8601(days, hours, minutes, seconds):
    text = f"P{days}DT{hours}H{minutes}M{seconds}S"

    assert duration_ms(text) == ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1M", "PT-1S"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(WrongSetting, match="write P1D, PT6H or PT30M"):
        duration_ms(text)


def test_a_duration_of_hundreds_of_digits_is_refused():
    with pytest.raises(WrongSetting, match="is longer than any time there is"):
        duration_ms("P" + "9" * 400 + "D")


@pytest.mark.parametrize(
    "given",
    [
        {"session_timeout_ms": "9" * 5000},
        {"linger_ms": "1_0"},
        {"bootstrap_servers": "a:" + "9" * 5000},
        {"bootstrap_servers": "a:+-1"},
    ],
)
def test_more_digits_than_python_reads_are_no_number(given):
    with pytest.raises(CoterieError):
        ConsumerSettings.of(**{"bootstrap_servers": HERE, **given})
