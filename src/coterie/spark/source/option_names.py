"""The names of the source's options: which there are, which have no effect, which are refused and why. Pure.

Spark hands options over with lower-cased names; `KNOWN` gives them back as users write them.
"""

from collections.abc import Mapping

from coterie.base.errors import CoterieError

# The columns there are, in their order.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "source")

# What Spark's own Kafka source has.
OWN = (
    "assign", "subscribe", "subscribePattern", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp",
    "endingOffsetsByTimestamp", "failOnDataLoss", "includeHeaders", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "kafkaConsumer.pollTimeoutMs",
)  # fmt: skip

# What only this source has.
OURS = (
    "group.id", "group.instance.id", "partition.assignment.strategy", "columns", "includeSource", "pushdown",
    "triggerInterval",
)  # fmt: skip

# Taken and without effect: each with the reason, which docs/spark.md prints.
IDLE = {
    "groupIdPrefix": "no group ids are made up",
    "fetchOffset.numRetries": "questions are asked again until kafka.default.api.timeout.ms",
    "fetchOffset.retryIntervalMs": "questions are asked again until kafka.default.api.timeout.ms",
}

SECURITY = (
    "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.truststore.location",
    "ssl.truststore.certificates", "ssl.truststore.password", "ssl.truststore.type", "ssl.keystore.location",
    "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.password", "ssl.keystore.type",
    "ssl.key.password", "ssl.endpoint.identification.algorithm",
)  # fmt: skip

KAFKA = (
    "bootstrap.servers", "client.id", "group.id", "group.instance.id", "partition.assignment.strategy",
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "metadata.max.age.ms",
    "request.timeout.ms", "default.api.timeout.ms", "retry.backoff.ms", "fetch.max.bytes",
    "max.partition.fetch.bytes", "isolation.level", *SECURITY,
)  # fmt: skip

# Settings of Kafka's consumer that change nothing about what a query reads, or that we see to by ourselves.
KAFKA_IDLE = (
    "allow.auto.create.topics", "auto.commit.interval.ms", "check.crcs", "client.dns.lookup", "client.rack",
    "connections.max.idle.ms", "enable.metrics.push", "exclude.internal.topics", "fetch.max.wait.ms",
    "fetch.min.bytes", "group.protocol", "group.remote.assignor",
    "internal.throw.on.fetch.stable.offset.unsupported", "max.poll.records",
    "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy", "metric.reporters",
    "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter", "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms",
    "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds", "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include", "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub", "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file", "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.header.urlencode", "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class", "sasl.oauthbearer.scope", "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name", "sasl.oauthbearer.token.endpoint.url", "security.providers",
    "send.buffer.bytes", "share.acknowledgement.mode", "share.acquire.mode",
    "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms", "ssl.cipher.suites",
    "ssl.enabled.protocols", "ssl.keymanager.algorithm", "ssl.protocol", "ssl.provider",
    "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
)  # fmt: skip

# Those of them that make one believe something: each with what is warned of, unless it has this value.
MISLEADING = {
    "kafka.group.protocol": (
        "classic",
        "a query joins by the classic protocol, with the assignors of partition.assignment.strategy",
    ),
    "kafka.group.remote.assignor": (
        None,
        "no broker assigns here: partition.assignment.strategy says how partitions are shared",
    ),
    "kafka.client.rack": (
        None,
        "tasks fetch from their partitions' leaders, be they in another zone, where that may cost money",
    ),
}

KAFKA_REFUSED = {
    "config.providers": "there is no Java here; put the values themselves into the options",
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys come as bytes; decode them with column functions",
    "value.deserializer": "values come as bytes; decode them with column functions",
    "enable.auto.commit": "offsets are committed after the batch is, and never before",
    "interceptor.classes": "interceptors could break the query",
    "sasl.client.callback.handler.class": "there is no Java here; put the name and password into the options",
    "sasl.login.callback.handler.class": "there is no Java here; put the name and password into the options",
    "sasl.login.class": "there is no Java here; put the name and password into the options",
    "ssl.engine.factory.class": "there is no Java here; name certificates by ssl.truststore.location",
}

KNOWN: Mapping[str, str] = {
    name.lower(): name for name in (*OWN, *OURS, *IDLE, *(f"kafka.{name}" for name in (*KAFKA, *KAFKA_IDLE)))
}


class BadOption(CoterieError):
    """An option that cannot be meant so; says which, why, and what to write instead."""


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that a query gets, from options with lower-cased names."""
    asked = {"headers": truth(given, "includeHeaders"), "source": truth(given, "includeSource")}
    text = given.get("columns")
    if text is None:
        return tuple(name for name in COLUMNS if asked.get(name, True))
    known = {name.lower(): name for name in COLUMNS}
    named = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in known]
    if unknown or not named or len(named) != len(set(named)):
        raise BadOption(f"option columns must name each at most once, of {', '.join(COLUMNS)}; not {text!r}")
    columns = [known[name] for name in named]
    return (*columns, *(name for name, wanted in asked.items() if wanted and name not in columns))


def truth(given: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return the true or false that an option holds."""
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise BadOption(f"option {name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def is_idle(name: str) -> bool:
    """Return whether an option of this lower-cased name has no effect here."""
    return KNOWN[name] in IDLE or KNOWN[name].removeprefix("kafka.") in KAFKA_IDLE
