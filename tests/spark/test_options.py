"""The options: those of Spark's own Kafka source, and a group."""

from __future__ import annotations

import pickle
from contextlib import suppress

import pytest

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.security.sasl import Credentials
from coterie.spark.options import BadOption
from coterie.spark.sink.options import SINK_OPTIONS, parse_sink
from coterie.spark.source.option_names import SOURCE_OPTIONS
from coterie.spark.source.options import COMMITTED, EARLIEST, LATEST, Bound, parse

JAVA = "org.apache.kafka.clients.consumer"
LEAST = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}


def parsed(streaming=True, **options):
    return parse(
        {**LEAST, **{name.replace("__", "."): value for name, value in options.items()}}, streaming=streaming
    )


def refused(streaming=True, without=(), **options):
    given = {**LEAST, **{name.replace("__", "."): value for name, value in options.items()}}
    with pytest.raises(BadOption) as caught:
        parse({name: value for name, value in given.items() if name not in without}, streaming=streaming)
    return str(caught.value)


def test_an_option_of_kafka_that_is_left_empty_is_not_set_and_no_algorithm_is_none():
    client = parsed(
        kafka__client__id="", kafka__security__protocol="", kafka__ssl__truststore__type="",
        kafka__ssl__endpoint__identification__algorithm="",
    ).client  # fmt: skip

    assert (client.client_id, client.security_protocol) == ("coterie-spark", "PLAINTEXT")
    assert (client.ssl_truststore_type, client.ssl_endpoint_identification_algorithm) == (None, "")
    sink = {"kafka.bootstrap.servers": "b:9092", "kafka.compression.type": ""}
    assert parse_sink(sink, streaming=False).producer().codec == "none"


def test_names_are_understood_in_lower_case_as_spark_hands_them_over():
    options = parse(
        {"kafka.bootstrap.servers": "a:1, [::1]:2", "subscribepattern": "f.*", "maxoffsetspertrigger": "7"},
        streaming=True,
    )

    assert options.bootstrap == (Address("a", 1), Address("::1", 2))
    assert options.selection.matches("flights")
    assert not options.selection.matches("xf")
    assert options.max_offsets_per_trigger == 7


def test_what_is_not_set_is_as_in_spark_s_source():
    stream, batch = parsed(), parsed(streaming=False)

    assert (stream.starting, batch.starting, batch.ending) == (Bound(LATEST), Bound(EARLIEST), Bound(LATEST))
    assert stream.fail_on_data_loss
    assert not stream.headers
    assert stream.member is None


def test_an_unknown_name_is_refused_with_the_nearest():
    assert "did you mean startingOffsets?" in refused(startingOfsets="earliest")
    assert "did you mean kafka.session.timeout.ms?" in refused(kafka__session__timeout="6000")


def test_what_spark_refuses_is_refused_with_the_reason():
    assert "startingOffsets" in refused(kafka__auto__offset__reset="earliest")
    assert "column functions" in refused(kafka__value__deserializer="x")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"assign": '{"t":[0]}'}, "subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "{"}, "JSON"),
        ({"startingOffsets": '{"t": 5}'}, "must be like"),
        ({"startingOffsets": "begin"}, "it takes earliest, latest"),
        ({"startingTimestamp": "yesterday"}, "milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "takes milliseconds since 1970, not -1"),
        ({"kafka.isolation.level": "dirty"}, "read_committed"),
        ({"kafka.security.protocol": "SSLL"}, "SASL_SSL"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-512"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.jaas.config"),
        ({"kafka.ssl.truststore.type": "BKS"}, "PKCS12"),
        ({"kafka.ssl.engine.factory.class": "x"}, "no Java here"),
        ({"columns": "key,valu"}, "timestampType"),
        ({"columns": "key,key"}, "at most once"),
        ({"columns": " "}, "must name"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "more than"),
        ({"maxTriggerDelay": "soon"}, "a time like"),
        ({"startingOffsets": "committed"}, "JSON"),
        ({"group.id": "g", "triggerInterval": "10 minutes"}, "the longest batch together"),
        ({"group.instance.id": "me"}, "group.id"),
        ({"group.id": "g", "group.instance.id": "ü"}, "letters"),
        ({"group.id": "g", "kafka.group.id": "h"}, "differ"),
        ({"group.id": "g", "partition.assignment.strategy": "stucky"}, "cooperative-sticky"),
        ({"group.id": "g", "partition.assignment.strategy": ","}, "names no assignor"),
        ({"group.id": "g", "kafka.heartbeat.interval.ms": "45000"}, "less than"),
        ({"endingOffsets": "latest"}, "not valid in streaming"),
        ({"path": "/data"}, "no path"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(options, part):
    assert part in refused(**options)


def test_batch_queries_have_their_own_rules():
    assert "can not be latest" in refused(streaming=False, startingOffsets="latest")
    assert "can not be earliest" in refused(streaming=False, endingOffsets='{"t":{"0":-2}}')
    assert "need a group.id" in refused(streaming=False, startingOffsets="committed")
    assert parsed(streaming=False, startingOffsets="committed", group__id="g").starting == Bound(COMMITTED)
    assert parsed(streaming=False, endingOffsets="committed", group__id="g").ending == Bound(COMMITTED)
    assert "bootstrap.servers" in refused(without=("kafka.bootstrap.servers",))


def test_a_timestamp_for_all_beats_timestamps_each_which_beat_offsets():
    each = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsets": "earliest"}

    assert parsed(**each).starting == Bound(None, {TopicPartition("t", 0): 5}, timestamps=True)
    assert parsed(**each, startingTimestamp="9").starting == Bound(9, timestamps=True)


def test_a_group_makes_a_member_with_kafka_s_settings():
    member = parsed(
        group__id="g",
        kafka__group__instance__id="me",
        kafka__session__timeout__ms="6000",
        kafka__max__poll__interval__ms="9000",
        partition__assignment__strategy="org.apache.kafka.clients.consumer.RoundRobinAssignor, range",
    ).member

    assert (member.group_id, member.instance_id) == ("g", "me")
    assert (member.session_timeout_ms, member.heartbeat_interval_ms) == (6000, 2000)
    assert member.max_poll_interval_ms == 9000
    assert member.assignors == ("roundrobin", "range")


@pytest.mark.parametrize("strategy", ["cooperative-sticky", f"{JAVA}.CooperativeStickyAssignor"])
def test_a_member_may_be_cooperative(strategy):
    assert parsed(group__id="g", partition__assignment__strategy=strategy).member.assignors == (
        "cooperative-sticky",
    )


def test_per_trigger_limits_are_those_of_spark_and_batch_queries_overlook_them():
    limits = {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "9", "maxTriggerDelay": "2m"}

    stream, batch = parsed(**limits), parsed(streaming=False, **limits)

    assert (stream.min_offsets_per_trigger, stream.max_offsets_per_trigger) == (5, 9)
    assert stream.max_trigger_delay_ms == 120_000
    assert parsed().max_trigger_delay_ms == 900_000
    assert batch.idle == ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500", 500), ("250ms", 250), ("15m", 900_000), ("1 minute", 60_000), ("10 Seconds", 10_000)],
)
def test_times_are_written_as_in_spark(text, ms):
    assert parsed(triggerInterval=text).trigger_interval_ms == ms


def test_columns_are_those_that_are_named_and_those_that_are_switched_on():
    assert parsed().columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert parsed(includeHeaders="true").columns[-2:] == ("timestampType", "headers")
    assert parsed(columns="Offset, value").columns == ("offset", "value")
    assert parsed(columns="value", includeSource="true").columns == ("value", "source")
    assert parsed(columns="source,headers", includeSource="true").columns == ("source", "headers")


def test_tls_and_sasl_are_set_as_people_paste_them():
    client = parsed(
        kafka__security__protocol="sasl_ssl",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config=(
            "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="me" password="it\\"s";'
        ),
        kafka__ssl__truststore__location="/certs/trust.jks",
        kafka__ssl__truststore__password="changeit",
        kafka__ssl__truststore__type="JKS",
        kafka__ssl__endpoint__identification__algorithm="",
    ).client

    assert client.credentials() == Credentials("SCRAM-SHA-512", "me", 'it"s')
    assert (client.ssl_truststore_location, client.ssl_truststore_password) == (
        "/certs/trust.jks",
        "changeit",
    )
    assert client.ssl_endpoint_identification_algorithm == ""
    assert "changeit" not in repr(client)


def test_tokens_are_set_by_a_function_s_name_or_by_a_token_endpoint_as_kafka_has_it():
    bearer = {"kafka__security__protocol": "SASL_SSL", "kafka__sasl__mechanism": "OAUTHBEARER"}
    by_name = parsed(**bearer, kafka__sasl__oauth__token__provider="os:getcwd").client
    endpoint = parsed(
        **bearer,
        kafka__sasl__oauthbearer__token__endpoint__url="https://idp/token",
        kafka__sasl__jaas__config='OAuthBearerLoginModule required clientId="me" clientSecret="it";',
    ).client

    assert by_name.credentials().source.name == "os:getcwd"
    assert endpoint.credentials().source.name == "the token endpoint https://idp/token"
    assert pickle.loads(pickle.dumps(by_name)) == by_name  # it goes to executors
    with pytest.raises(BadOption, match=r"kafka\.sasl\.oauth\.token\.provider.*kafka\.sasl\.oauthbearer"):
        parsed(**bearer)
    with pytest.raises(BadOption, match=r"a function into kafka\.sasl\.oauth\.token\.provider"):
        parsed(kafka__sasl__login__callback__handler__class="a.Handler")


def test_a_mechanism_without_sasl_is_overlooked_as_kafka_s_consumer_does():
    assert parsed(kafka__sasl__mechanism="PLAIN").client.security_protocol == "PLAINTEXT"


def test_every_setting_of_kafka_s_consumer_is_known_or_refused_with_a_reason():
    with open("tests/data/consumer-settings.txt", encoding="utf-8") as file:
        settings = file.read().split()

    known = SOURCE_OPTIONS.known.keys() | SOURCE_OPTIONS.fates.keys()
    assert [name for name in settings if f"kafka.{name}" not in known] == []


def test_settings_without_effect_are_noted():
    assert parsed(groupIdPrefix="x", kafka__max__poll__records="5").idle == (
        "groupIdPrefix",
        "kafka.max.poll.records",
    )


def test_every_option_stands_in_the_documentation():
    with open("docs/spark.md", encoding="utf-8") as file:
        page = file.read()

    named = [setting.name for setting in SOURCE_OPTIONS.known.values()]
    assert [name for name in named if f"`{name}`" not in page] == []


def test_options_without_effect_that_make_one_believe_something_are_warned_of():
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.remote.assignor": "uniform"}
    consumer = parse({**given, "kafka.group.protocol": "consumer"}, streaming=True).warnings
    classic = parse({**given, "kafka.group.protocol": "CLASSIC"}, streaming=False).warnings

    assert [one.split(" has")[0] for one in consumer] == [
        "option kafka.group.protocol=consumer",
        "option kafka.group.remote.assignor=uniform",
    ]
    assert "the classic protocol" in consumer[0]
    assert "no broker assigns here" in consumer[1]
    assert classic == consumer[1:]
    assert parse({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=True).warnings == ()


def test_a_label_of_spark_s_source_that_makes_a_member_here_is_warned_of():
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"}

    (warning,) = parse(given, streaming=True).warnings

    assert "kafka.group.id=g makes this query a member" in warning
    assert "leave it out" in warning
    assert parse({**given, "group.id": "g"}, streaming=True).warnings == ()
    assert parse(given, streaming=False).warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"t":{"0":1.7}}',
        '{"t":{"0":true}}',
        '{"t":{"0":null}}',
        '{"t":{"0":-4}}',
        '{"t":{"0":Infinity}}',
        '{"t":{"0":9223372036854775808}}',
        '{"t":{"-1":5}}',
        '{"t":{"2147483648":5}}',
        '{"t":{"1_0":5}}',
        '{"t":{"0":1},"t":{"1":2}}',
        '{"t":{"0":1,"0":2}}',
        '{"t":{"0":' + "9" * 5000 + "}}",
        '{"a":' * 100_000,
    ],
)
def test_offsets_that_nobody_can_mean_are_refused_and_not_read_as_others(text):
    for name in (
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsets",
        "endingOffsetsByTimestamp",
    ):
        said = refused(**{name: text}, streaming=False)
        assert name in said
        assert len(said) < 1000


def test_what_stands_for_committed_offsets_is_no_offset():
    for streaming in (True, False):
        assert "not -3" in refused(startingOffsets='{"t":{"0":-3}}', streaming=streaming)


@pytest.mark.parametrize(
    "text", ['{"t":"01"}', '{"t":[0.5]}', '{"t":[true]}', '{"t":[-3]}', '{"t":[]}', "[1]"]
)
def test_partitions_that_nobody_can_mean_are_refused(text):
    assert "option assign" in refused(without=("subscribe",), assign=text)


VALUES = (
    "",
    "9" * 5000,
    str(2**63),
    "-1",
    "1.5",
    "\u0663m",
    "a{99999999999}",
    "(" * 5000,
    "[" * 100_000,
    "\udcff",
)


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_any_value_of_any_option_is_taken_or_refused_in_a_sentence(value):
    for name in sorted(setting.name for setting in SOURCE_OPTIONS.known.values()):
        given = {**LEAST, "group.id": "g", name: value}
        if name in ("assign", "subscribePattern"):
            del given["subscribe"]
        for streaming in (True, False):
            with suppress(CoterieError):
                parse(given, streaming=streaming)
    for name in sorted(setting.name for setting in SINK_OPTIONS.known.values()):
        with suppress(CoterieError):
            parse_sink({"kafka.bootstrap.servers": "b:9092", "topic": "t", name: value}, streaming=True)


def test_no_delay_is_no_delay():
    assert parsed(maxTriggerDelay="0s").max_trigger_delay_ms == 0
    assert parsed().max_trigger_delay_ms == 900_000
