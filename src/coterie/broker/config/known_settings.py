"""Every setting that Apache Kafka 4.3.1 knows, of brokers and of topics: name, kind, rule and default.

Read out of its `KafkaConfig` and `LogConfig`, one line a setting; a missing default is the empty text,
`null` is no default. Defaults differ where one broker cannot keep Kafka's: replication factors and minimal
in-sync replicas of internal topics are 1, it listens on 127.0.0.1, and `node.id` is 1.
"""

from typing import NamedTuple


class Known(NamedTuple):
    """One setting. `rule` is a range (`1..`, `0..9`), the words it takes (`a|b`, `~a|b` in any case) or `-`.

    For `replicas` see `setting_values.check_replicas`, which has the one rule that is neither.
    """

    name: str
    kind: str  # int short long double boolean string list class password
    rule: str
    default: str | None


def _table(text: str) -> dict[str, Known]:
    known = {}
    for line in text.split("\n")[1:-1]:
        name, kind, rule, *default = line.split(" ")
        known[name] = Known(name, kind, rule, None if default == ["null"] else "".join(default))
    return known


BROKER = _table("""
add.partitions.to.txn.retry.backoff.max.ms int 0.. 100
add.partitions.to.txn.retry.backoff.ms int 1.. 20
advertised.listeners list - null
alter.config.policy.class.name class - null
alter.log.dirs.replication.quota.window.num int 1.. 11
alter.log.dirs.replication.quota.window.size.seconds int 1.. 1
authorizer.class.name string -
auto.create.topics.enable boolean - true
auto.leader.rebalance.enable boolean - true
background.threads int 1.. 10
broker.heartbeat.interval.ms int - 2000
broker.id int - -1
broker.rack string - null
broker.session.timeout.ms int - 9000
client.quota.callback.class class - null
compression.gzip.level int -1|1..9 -1
compression.lz4.level int 1..17 9
compression.type string uncompressed|zstd|lz4|snappy|gzip|producer producer
compression.zstd.level int -131072..22 3
config.providers list -
connection.failed.authentication.delay.ms int 0.. 100
connections.max.idle.ms long - 600000
connections.max.reauth.ms long - 0
controlled.shutdown.enable boolean - true
controller.listener.names list -
controller.quorum.append.linger.ms int 0.. 25
controller.quorum.auto.join.enable boolean - false
controller.quorum.bootstrap.servers list -
controller.quorum.election.backoff.max.ms int 0.. 1000
controller.quorum.election.timeout.ms int 0.. 1000
controller.quorum.fetch.max.bytes int 1.. 1048576
controller.quorum.fetch.snapshot.max.bytes int 1.. 1048576
controller.quorum.fetch.timeout.ms int 0.. 2000
controller.quorum.request.timeout.ms int 0.. 2000
controller.quorum.retry.backoff.ms int 0.. 20
controller.quorum.voters list -
controller.quota.window.num int 1.. 11
controller.quota.window.size.seconds int 1.. 1
controller.socket.timeout.ms int - 30000
cordoned.log.dirs list -
create.topic.policy.class.name class - null
default.replication.factor int - 1
delegation.token.expiry.check.interval.ms long 1.. 3600000
delegation.token.expiry.time.ms long 1.. 86400000
delegation.token.max.lifetime.ms long 1.. 604800000
delegation.token.secret.key password - null
delete.records.purgatory.purge.interval.requests int - 1
delete.topic.enable boolean - true
early.start.listeners list - null
fetch.max.bytes int 1024.. 57671680
fetch.purgatory.purge.interval.requests int - 1000
follower.fetch.last.tiered.offset.enable boolean - false
group.consumer.assignment.interval.ms int 0.. 1000
group.consumer.assignors list - uniform,range
group.consumer.heartbeat.interval.ms int 1.. 5000
group.consumer.max.assignment.interval.ms int 0.. 15000
group.consumer.max.heartbeat.interval.ms int 1.. 15000
group.consumer.max.session.timeout.ms int 1.. 60000
group.consumer.max.size int 1.. 2147483647
group.consumer.migration.policy string ~DISABLED|DOWNGRADE|UPGRADE|BIDIRECTIONAL bidirectional
group.consumer.min.assignment.interval.ms int 0.. 0
group.consumer.min.heartbeat.interval.ms int 1.. 5000
group.consumer.min.session.timeout.ms int 1.. 45000
group.consumer.session.timeout.ms int 1.. 45000
group.coordinator.append.linger.ms int -1.. -1
group.coordinator.background.threads int 1.. 2
group.coordinator.cached.buffer.max.bytes int 524288.. 1048588
group.coordinator.rebalance.protocols list consumer|classic|share|streams classic,consumer,streams
group.coordinator.threads int 1.. 4
group.initial.rebalance.delay.ms int - 3000
group.max.session.timeout.ms int - 1800000
group.max.size int 1.. 2147483647
group.min.session.timeout.ms int - 6000
group.share.assignment.interval.ms int 0.. 1000
group.share.assignors list - simple
group.share.delivery.count.limit int 2..10 5
group.share.heartbeat.interval.ms int 1.. 5000
group.share.max.assignment.interval.ms int 0.. 15000
group.share.max.delivery.count.limit int 5..25 10
group.share.max.heartbeat.interval.ms int 1.. 15000
group.share.max.partition.max.record.locks int 2000..10000 4000
group.share.max.record.lock.duration.ms int 30000..3600000 60000
group.share.max.session.timeout.ms int 1.. 60000
group.share.max.share.sessions int 1.. 2000
group.share.max.size int 1..1000 200
group.share.min.assignment.interval.ms int 0.. 0
group.share.min.delivery.count.limit int 2..5 2
group.share.min.heartbeat.interval.ms int 1.. 5000
group.share.min.partition.max.record.locks int 100..2000 100
group.share.min.record.lock.duration.ms int 1000..30000 15000
group.share.min.session.timeout.ms int 1.. 45000
group.share.partition.max.record.locks int 100..10000 2000
group.share.record.lock.duration.ms int 1000..3600000 30000
group.share.session.timeout.ms int 1.. 45000
group.streams.assignment.interval.ms int 0.. 1000
group.streams.heartbeat.interval.ms int 1.. 5000
group.streams.initial.rebalance.delay.ms int 0.. 3000
group.streams.max.assignment.interval.ms int 0.. 15000
group.streams.max.heartbeat.interval.ms int 1.. 15000
group.streams.max.session.timeout.ms int 1.. 60000
group.streams.max.size int 1.. 2147483647
group.streams.max.standby.replicas int 0.. 2
group.streams.min.assignment.interval.ms int 0.. 0
group.streams.min.heartbeat.interval.ms int 1.. 5000
group.streams.min.session.timeout.ms int 1.. 45000
group.streams.num.standby.replicas int 0.. 0
group.streams.session.timeout.ms int 1.. 45000
initial.broker.registration.timeout.ms int - 60000
inter.broker.listener.name string - null
kafka.metrics.polling.interval.secs int 1.. 10
kafka.metrics.reporters list -
leader.imbalance.check.interval.seconds long 1.. 300
listener.security.protocol.map string - SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
listeners list - PLAINTEXT://127.0.0.1:9092
log.cleaner.backoff.ms long 0.. 15000
log.cleaner.dedupe.buffer.size long - 134217728
log.cleaner.delete.retention.ms long 0.. 86400000
log.cleaner.enable boolean - true
log.cleaner.io.buffer.load.factor double - 0.9
log.cleaner.io.buffer.size int 0.. 524288
log.cleaner.io.max.bytes.per.second double - 1.7976931348623157E308
log.cleaner.max.compaction.lag.ms long 1.. 9223372036854775807
log.cleaner.min.cleanable.ratio double 0..1 0.5
log.cleaner.min.compaction.lag.ms long 0.. 0
log.cleaner.threads int 0.. 1
log.cleanup.policy list compact|delete delete
log.dir list - null
log.dir.failure.timeout.ms long 1.. 30000
log.dirs list - null
log.flush.interval.messages long 1.. 9223372036854775807
log.flush.interval.ms long - null
log.flush.offset.checkpoint.interval.ms int 0.. 60000
log.flush.scheduler.interval.ms long - 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms int 0.. 60000
log.index.interval.bytes int 0.. 4096
log.index.size.max.bytes int 4.. 10485760
log.local.retention.bytes long -2.. -2
log.local.retention.ms long -2.. -2
log.message.timestamp.after.max.ms long 0.. 3600000
log.message.timestamp.before.max.ms long 0.. 9223372036854775807
log.message.timestamp.type string CreateTime|LogAppendTime CreateTime
log.preallocate boolean - false
log.retention.bytes long - -1
log.retention.check.interval.ms long 1.. 300000
log.retention.hours int - 168
log.retention.minutes int - null
log.retention.ms long - null
log.roll.hours int 1.. 168
log.roll.jitter.hours int 0.. 0
log.roll.jitter.ms long - null
log.roll.ms long - null
log.segment.bytes int 1048576.. 1073741824
log.segment.delete.delay.ms long 0.. 60000
max.connection.creation.rate int 0.. 2147483647
max.connections int 0.. 2147483647
max.connections.per.ip int 0.. 2147483647
max.connections.per.ip.overrides string -
max.incremental.fetch.session.cache.slots int 0.. 1000
max.request.partition.size.limit int 1.. 2000
message.max.bytes int 0.. 1048588
metadata.log.dir string - null
metadata.log.max.record.bytes.between.snapshots long 1.. 20971520
metadata.log.max.snapshot.interval.ms long 0.. 3600000
metadata.log.segment.bytes int 8388608.. 1073741824
metadata.log.segment.ms long - 604800000
metadata.max.idle.interval.ms int 0.. 500
metadata.max.retention.bytes long - 104857600
metadata.max.retention.ms long - 604800000
metric.reporters list - org.apache.kafka.common.metrics.JmxReporter
metrics.num.samples int 1.. 2
metrics.recording.level string - INFO
metrics.sample.window.ms long 1.. 30000
min.insync.replicas int 1.. 1
node.id int 0.. 1
num.io.threads int 1.. 8
num.network.threads int 1.. 3
num.partitions int 1.. 1
num.recovery.threads.per.data.dir int 1.. 2
num.replica.alter.log.dirs.threads int - null
num.replica.fetchers int 1.. 1
offset.metadata.max.bytes int - 4096
offsets.commit.timeout.ms int 1.. 5000
offsets.load.buffer.size int 1.. 5242880
offsets.retention.check.interval.ms long 1.. 600000
offsets.retention.minutes int 1.. 10080
offsets.topic.compression.codec int - 0
offsets.topic.num.partitions int 1.. 50
offsets.topic.replication.factor short 1.. 1
offsets.topic.segment.bytes int 1.. 104857600
principal.builder.class class - org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
process.roles list broker|controller broker,controller
producer.id.expiration.ms int 1.. 86400000
producer.purgatory.purge.interval.requests int - 1000
queued.max.request.bytes long - -1
queued.max.requests int 1.. 500
quota.window.num int 1.. 11
quota.window.size.seconds int 1.. 1
remote.fetch.max.wait.ms int 1.. 500
remote.list.offsets.request.timeout.ms long 1.. 30000
remote.log.index.file.cache.total.size.bytes long 1.. 1073741824
remote.log.manager.copier.thread.pool.size int 1.. 10
remote.log.manager.copy.max.bytes.per.second long 1.. 9223372036854775807
remote.log.manager.copy.quota.window.num int 1.. 11
remote.log.manager.copy.quota.window.size.seconds int 1.. 1
remote.log.manager.expiration.thread.pool.size int 1.. 10
remote.log.manager.fetch.max.bytes.per.second long 1.. 9223372036854775807
remote.log.manager.fetch.quota.window.num int 1.. 11
remote.log.manager.fetch.quota.window.size.seconds int 1.. 1
remote.log.manager.follower.thread.pool.size int 1.. 2
remote.log.manager.task.interval.ms long 1.. 30000
remote.log.manager.thread.pool.size int 1.. 2
remote.log.metadata.custom.metadata.max.bytes int 0.. 128
remote.log.metadata.manager.class.name string - org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path string - null
remote.log.metadata.manager.impl.prefix string - rlmm.config.
remote.log.metadata.manager.listener.name string - null
remote.log.reader.max.pending.tasks int 1.. 100
remote.log.reader.threads int 1.. 10
remote.log.storage.manager.class.name string - null
remote.log.storage.manager.class.path string - null
remote.log.storage.manager.impl.prefix string - rsm.config.
remote.log.storage.system.enable boolean - false
replica.fetch.backoff.ms int 0.. 1000
replica.fetch.max.bytes int 0.. 1048576
replica.fetch.min.bytes int - 1
replica.fetch.response.max.bytes int 0.. 10485760
replica.fetch.wait.max.ms int - 500
replica.high.watermark.checkpoint.interval.ms long - 5000
replica.lag.time.max.ms long - 30000
replica.selector.class string - null
replica.socket.receive.buffer.bytes int - 65536
replica.socket.timeout.ms int - 30000
replication.quota.window.num int 1.. 11
replication.quota.window.size.seconds int 1.. 1
request.timeout.ms int - 30000
sasl.client.callback.handler.class class - null
sasl.enabled.mechanisms list - GSSAPI
sasl.jaas.config password - null
sasl.kerberos.kinit.cmd string - /usr/bin/kinit
sasl.kerberos.min.time.before.relogin long - 60000
sasl.kerberos.principal.to.local.rules list - DEFAULT
sasl.kerberos.service.name string - null
sasl.kerberos.ticket.renew.jitter double - 0.05
sasl.kerberos.ticket.renew.window.factor double - 0.8
sasl.login.callback.handler.class class - null
sasl.login.class class - null
sasl.login.connect.timeout.ms int - null
sasl.login.read.timeout.ms int - null
sasl.login.refresh.buffer.seconds short - 300
sasl.login.refresh.min.period.seconds short - 60
sasl.login.refresh.window.factor double - 0.8
sasl.login.refresh.window.jitter double - 0.05
sasl.login.retry.backoff.max.ms long - 10000
sasl.login.retry.backoff.ms long - 100
sasl.mechanism.controller.protocol string - GSSAPI
sasl.mechanism.inter.broker.protocol string - GSSAPI
sasl.oauthbearer.assertion.algorithm string ~ES256|RS256 RS256
sasl.oauthbearer.assertion.claim.aud string - null
sasl.oauthbearer.assertion.claim.exp.seconds int 0..86400 300
sasl.oauthbearer.assertion.claim.iss string - null
sasl.oauthbearer.assertion.claim.jti.include boolean - false
sasl.oauthbearer.assertion.claim.nbf.seconds int 0..3600 60
sasl.oauthbearer.assertion.claim.sub string - null
sasl.oauthbearer.assertion.file string - null
sasl.oauthbearer.assertion.private.key.file string - null
sasl.oauthbearer.assertion.private.key.passphrase password - null
sasl.oauthbearer.assertion.template.file string - null
sasl.oauthbearer.client.credentials.client.id string - null
sasl.oauthbearer.client.credentials.client.secret password - null
sasl.oauthbearer.clock.skew.seconds int - 30
sasl.oauthbearer.expected.audience list -
sasl.oauthbearer.expected.issuer string - null
sasl.oauthbearer.jwks.endpoint.refresh.ms long - 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long - 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long - 100
sasl.oauthbearer.jwks.endpoint.url string - null
sasl.oauthbearer.jwt.retriever.class class - org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class class - org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope string - null
sasl.oauthbearer.scope.claim.name string - scope
sasl.oauthbearer.sub.claim.name string - sub
sasl.oauthbearer.token.endpoint.url string - null
sasl.server.callback.handler.class class - null
sasl.server.max.receive.size int - 524288
security.inter.broker.protocol string PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL PLAINTEXT
security.providers string - null
share.coordinator.append.linger.ms int -1.. -1
share.coordinator.cached.buffer.max.bytes int 524288.. 1048588
share.coordinator.load.buffer.size int 1.. 5242880
share.coordinator.snapshot.update.records.per.snapshot int 0..500 500
share.coordinator.state.topic.compression.codec int - 0
share.coordinator.state.topic.min.isr short 1.. 1
share.coordinator.state.topic.num.partitions int 1.. 50
share.coordinator.state.topic.replication.factor short 1.. 1
share.coordinator.state.topic.segment.bytes int 1.. 104857600
share.coordinator.threads int 1.. 1
share.coordinator.write.timeout.ms int 1.. 5000
share.fetch.purgatory.purge.interval.requests int - 1000
socket.connection.setup.timeout.max.ms long - 30000
socket.connection.setup.timeout.ms long - 10000
socket.listen.backlog.size int 1.. 50
socket.receive.buffer.bytes int - 102400
socket.request.max.bytes int 1.. 104857600
socket.send.buffer.bytes int - 102400
ssl.allow.dn.changes boolean - false
ssl.allow.san.changes boolean - false
ssl.cipher.suites list -
ssl.client.auth string required|requested|none none
ssl.enabled.protocols list - TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm string - https
ssl.engine.factory.class class - null
ssl.key.password password - null
ssl.keymanager.algorithm string - SunX509
ssl.keystore.certificate.chain password - null
ssl.keystore.key password - null
ssl.keystore.location string - null
ssl.keystore.password password - null
ssl.keystore.type string - JKS
ssl.principal.mapping.rules string - DEFAULT
ssl.protocol string - TLSv1.3
ssl.provider string - null
ssl.secure.random.implementation string - null
ssl.trustmanager.algorithm string - PKIX
ssl.truststore.certificates password - null
ssl.truststore.location string - null
ssl.truststore.password password - null
ssl.truststore.type string - JKS
telemetry.max.bytes int 1.. 1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms int 1.. 10000
transaction.max.timeout.ms int 1.. 900000
transaction.partition.verification.enable boolean - true
transaction.remove.expired.transaction.cleanup.interval.ms int 1.. 3600000
transaction.state.log.load.buffer.size int 1.. 5242880
transaction.state.log.min.isr int 1.. 1
transaction.state.log.num.partitions int 1.. 50
transaction.state.log.replication.factor short 1.. 1
transaction.state.log.segment.bytes int 1.. 104857600
transaction.two.phase.commit.enable boolean - false
transactional.id.expiration.ms int 1.. 604800000
unclean.leader.election.enable boolean - false
""")  # noqa: E501

INTERNAL = _table("""
controller.performance.always.log.threshold.ms long 0.. 2000
controller.performance.sample.period.ms long 100.. 60000
group.consumer.regex.refresh.interval.ms int 10000.. 600000
group.share.initialize.retry.interval.ms int 1.. 30000
group.share.persister.class.name string - org.apache.kafka.server.share.persister.DefaultStatePersister
internal.metadata.delete.delay.millis long - 60000
internal.metadata.log.segment.bytes int - null
internal.metadata.max.batch.size.in.bytes int - 8388608
log.initial.task.delay.ms long 0.. 30000
producer.id.expiration.check.interval.ms int 1.. 600000
remote.log.index.file.cache.ttl.ms long -1.. 900000
remote.log.manager.task.retry.backoff.max.ms long 1.. 30000
remote.log.manager.task.retry.backoff.ms long 1.. 500
remote.log.manager.task.retry.jitter double 0..0.5 0.2
server.max.startup.time.ms long 0.. 9223372036854775807
share.coordinator.cold.partition.snapshot.interval.ms int 1.. 300000
share.coordinator.state.topic.prune.interval.ms int 1.. 300000
unclean.leader.election.interval.ms long 1.. 300000
unstable.api.versions.enable boolean - false
unstable.feature.versions.enable boolean - false
""")
"""What Kafka accepts and does not document."""

OWN = _table("""
coterie.story.enable boolean - true
coterie.story.retention.bytes long -1.. 268435456
coterie.story.retention.ms long -1.. 604800000
""")
"""What Kafka does not have."""

TOPIC = _table("""
cleanup.policy list compact|delete delete
compression.gzip.level int -1|1..9 -1
compression.lz4.level int 1..17 9
compression.type string uncompressed|zstd|lz4|snappy|gzip|producer producer
compression.zstd.level int -131072..22 3
delete.retention.ms long 0.. 86400000
file.delete.delay.ms long 0.. 60000
flush.messages long 1.. 9223372036854775807
flush.ms long 0.. 9223372036854775807
follower.replication.throttled.replicas list replicas
index.interval.bytes int 0.. 4096
internal.segment.bytes int - null
leader.replication.throttled.replicas list replicas
local.retention.bytes long -2.. -2
local.retention.ms long -2.. -2
max.compaction.lag.ms long 1.. 9223372036854775807
max.message.bytes int 0.. 1048588
message.timestamp.after.max.ms long 0.. 3600000
message.timestamp.before.max.ms long 0.. 9223372036854775807
message.timestamp.type string CreateTime|LogAppendTime CreateTime
min.cleanable.dirty.ratio double 0..1 0.5
min.compaction.lag.ms long 0.. 0
min.insync.replicas int 1.. 1
preallocate boolean - false
remote.log.copy.disable boolean - false
remote.log.delete.on.disable boolean - false
remote.storage.enable boolean - false
retention.bytes long - -1
retention.ms long -1.. 604800000
segment.bytes int 1048576.. 1073741824
segment.index.bytes int 4.. 10485760
segment.jitter.ms long 0.. 0
segment.ms long 1.. 604800000
unclean.leader.election.enable boolean - false
""")
