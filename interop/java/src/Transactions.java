import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;

/** Transactions: what readers of either isolation see, offsets within them, and who is fenced. */
final class Transactions {
    static List<Check> checks() {
        return List.of(
            new Check("txn-commit", Transactions::commit),
            new Check("txn-abort", Transactions::abort),
            new Check("txn-many-in-a-row", Transactions::manyInARow),
            new Check("txn-many-partitions", Transactions::manyPartitions),
            new Check("txn-interleaved", Transactions::interleaved),
            new Check("txn-last-stable-offset", Transactions::lastStableOffset),
            new Check("txn-waiting-reader-is-told", Transactions::waitingReader),
            new Check("txn-empty", Transactions::empty),
            new Check("txn-zombie-fenced", Transactions::zombie),
            new Check("txn-init-aborts-the-unfinished", Transactions::initAborts),
            new Check("txn-timeout", Transactions::timeout),
            new Check("txn-timeout-too-long", Transactions::timeoutTooLong),
            new Check("txn-offsets-commit-and-abort", Transactions::offsets),
            new Check("txn-offsets-pending", Transactions::offsetsPending),
            new Check("txn-offsets-of-an-empty-group", Transactions::offsetsOfAnEmptyGroup),
            new Check("txn-offsets-stale-generation", Transactions::staleGeneration),
            new Check("txn-offsets-unknown-member", Transactions::unknownMember),
            new Check("txn-offsets-fenced-instance", Transactions::fencedInstance),
            new Check("txn-compression", Transactions::compression));
    }

    static KafkaProducer<String, String> transactional(Bench bench, String id, String... settings) {
        String[] all = java.util.Arrays.copyOf(settings, settings.length + 2);
        all[settings.length] = "transactional.id";
        all[settings.length + 1] = id;
        KafkaProducer<String, String> producer = bench.producer(all);
        producer.initTransactions();
        return producer;
    }

    static void send(KafkaProducer<String, String> producer, String topic, int partition, int from, int to) {
        for (int value = from; value < to; value++) {
            producer.send(new ProducerRecord<>(topic, partition, null, Integer.toString(value)));
        }
        producer.flush();
    }

    private static void commit(Bench bench) throws Exception {
        String topic = bench.topic(1);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        send(producer, topic, 0, 0, 10);
        Bench.same(List.of(), bench.values(topic, "read_committed"), "committed before the commit");
        Bench.same(Groups.numbers(0, 10), bench.values(topic, "read_uncommitted"), "uncommitted");
        producer.commitTransaction();
        Bench.same(Groups.numbers(0, 10), bench.values(topic, "read_committed"), "committed after it");
    }

    private static void abort(Bench bench) throws Exception {
        String topic = bench.topic(1);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        send(producer, topic, 0, 0, 10);
        producer.abortTransaction();
        producer.beginTransaction();
        send(producer, topic, 0, 10, 20);
        producer.commitTransaction();
        Bench.same(Groups.numbers(10, 20), bench.values(topic, "read_committed"), "committed");
        Bench.same(Groups.numbers(0, 20), bench.values(topic, "read_uncommitted"), "all that was written");
    }

    private static void manyInARow(Bench bench) throws Exception {
        String topic = bench.topic(2);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        int wanted = 0;
        for (int round = 0; round < 100; round++) {
            producer.beginTransaction();
            send(producer, topic, round % 2, round * 3, round * 3 + 3);
            if (round % 3 == 0) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
                wanted += 3;
            }
        }
        Bench.same(wanted, bench.values(topic, "read_committed").size(), "records of the committed ones");
    }

    private static void manyPartitions(Bench bench) throws Exception {
        String topic = bench.topic(40);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        for (boolean commits : new boolean[] {true, false, true}) {
            producer.beginTransaction();
            for (int partition = 0; partition < 40; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, Boolean.toString(commits)));
            }
            if (commits) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        List<String> values = bench.values(topic, "read_committed");
        Bench.same(80, values.size(), "records of the committed ones");
        Bench.demand(!values.contains("false"), "one of an aborted transaction is seen");
    }

    private static void interleaved(Bench bench) throws Exception {
        String topic = bench.topic(1);
        KafkaProducer<String, String> one = transactional(bench, bench.name());
        KafkaProducer<String, String> two = transactional(bench, bench.name());
        one.beginTransaction();
        two.beginTransaction();
        send(one, topic, 0, 0, 2);
        send(two, topic, 0, 2, 4);
        send(one, topic, 0, 4, 6);
        two.commitTransaction();
        Bench.same(List.of(), bench.values(topic, "read_committed"), "the first holds back what comes after it");
        send(one, topic, 0, 6, 7);
        one.abortTransaction();
        bench.produce(topic, 1, 7, 9);
        Bench.same(List.of("2", "3", "7", "8"), bench.values(topic, "read_committed"), "committed");
    }

    private static void lastStableOffset(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        bench.produce(topic, 1, 0, 5);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        KafkaConsumer<String, String> committed = bench.consumer("isolation.level", "read_committed");
        KafkaConsumer<String, String> all = bench.consumer();
        producer.beginTransaction();
        send(producer, topic, 0, 5, 8);
        Bench.same(5L, committed.endOffsets(List.of(partition)).get(partition), "the last stable offset");
        Bench.same(8L, all.endOffsets(List.of(partition)).get(partition), "the end");
        producer.commitTransaction();
        Bench.until("the marker counts", Bench.SOON,
            () -> committed.endOffsets(List.of(partition)).get(partition) == 9);
    }

    /** A fetch that waits at the last stable offset is answered when a marker moves it. */
    private static void waitingReader(Bench bench) throws Exception {
        String topic = bench.topic(1);
        Member reader = bench.member(new Ledger(), bench.name(), topic,
            "isolation.level", "read_committed", "fetch.max.wait.ms", "20000");
        Groups.settled(1, reader);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        send(producer, topic, 0, 0, 3);
        Thread.sleep(1_000); // the reader's fetch waits now
        Bench.demand(reader.values.isEmpty(), "read before the commit: " + reader.values);
        producer.commitTransaction();
        Bench.until("it is told of the commit", Duration.ofSeconds(5), () -> reader.values.size() == 3);
    }

    private static void empty(Bench bench) throws Exception {
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        producer.commitTransaction();
        producer.beginTransaction();
        producer.abortTransaction();
        String topic = bench.topic(1);
        producer.beginTransaction();
        send(producer, topic, 0, 0, 1);
        producer.commitTransaction();
        Bench.same(Groups.numbers(0, 1), bench.values(topic, "read_committed"), "committed");
    }

    private static void zombie(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String id = bench.name();
        KafkaProducer<String, String> old = transactional(bench, id);
        old.beginTransaction();
        send(old, topic, 0, 0, 2);
        KafkaProducer<String, String> young = transactional(bench, id);
        young.beginTransaction();
        send(young, topic, 0, 2, 4);
        Bench.refused(() -> old.send(new ProducerRecord<>(topic, 0, null, "zombie")).get(),
            ProducerFencedException.class, InvalidProducerEpochException.class);
        Bench.refused(() -> old.commitTransaction(),
            ProducerFencedException.class, InvalidProducerEpochException.class);
        young.commitTransaction();
        Bench.same(Groups.numbers(2, 4), bench.values(topic, "read_committed"), "committed");
    }

    private static void initAborts(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String id = bench.name();
        KafkaProducer<String, String> gone = transactional(bench, id);
        gone.beginTransaction();
        send(gone, topic, 0, 0, 2);
        send(gone, topic, 1, 2, 4);
        gone.close(Duration.ZERO); // neither committed nor aborted
        transactional(bench, id);
        bench.produce(topic, 2, 10, 12);
        Bench.same(Set.of("10", "11"), Set.copyOf(bench.values(topic, "read_committed")), "committed");
    }

    private static void timeout(Bench bench) throws Exception {
        String topic = bench.topic(1);
        KafkaProducer<String, String> slow = transactional(bench, bench.name(), "transaction.timeout.ms", "1500");
        slow.beginTransaction();
        send(slow, topic, 0, 0, 3);
        bench.produce(topic, 1, 10, 12);
        Bench.until("the broker has aborted it", Bench.SOON,
            () -> bench.values(topic, "read_committed").equals(List.of("10", "11")));
        Bench.refused(slow::commitTransaction, ProducerFencedException.class, InvalidProducerEpochException.class,
            InvalidTxnStateException.class);
    }

    private static void timeoutTooLong(Bench bench) throws Exception {
        Throwable why = Bench.refused(() -> transactional(bench, bench.name(), "transaction.timeout.ms", "900001"),
            KafkaException.class);
        Bench.demand(why.getMessage().contains("timeout is larger"), "refused, but with " + why);
        transactional(bench, bench.name(), "transaction.timeout.ms", "900000");
    }

    private static Map<TopicPartition, OffsetAndMetadata> at(TopicPartition partition, long offset) {
        return Map.of(partition, new OffsetAndMetadata(offset));
    }

    private static long committed(KafkaConsumer<String, String> consumer, TopicPartition partition) {
        OffsetAndMetadata found = consumer.committed(Set.of(partition)).get(partition);
        return found == null ? -1 : found.offset();
    }

    private static void offsets(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        Member member = bench.member(new Ledger(), bench.name(), topic);
        Groups.settled(1, member);
        ConsumerGroupMetadata group = member.ask(KafkaConsumer::groupMetadata);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(at(partition, 11), group);
        producer.commitTransaction();
        Bench.same(11L, member.ask(it -> committed(it, partition)), "after a commit");
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(at(partition, 22), group);
        producer.abortTransaction();
        Bench.same(11L, member.ask(it -> committed(it, partition)), "after an abort");
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(at(partition, 33), group);
        producer.sendOffsetsToTransaction(at(partition, 34), group);
        producer.commitTransaction();
        Bench.same(34L, member.ask(it -> committed(it, partition)), "the later of two in one transaction");
    }

    /** Consumers ask for stable offsets (KIP-447), and so wait for the transaction. */
    private static void offsetsPending(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group);
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(at(partition, 11), new ConsumerGroupMetadata(group));
        Bench.refused(() -> consumer.committed(Set.of(partition), Duration.ofSeconds(1)), TimeoutException.class);
        Bench.demand(bench.admin().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().isEmpty(),
            "who does not ask for stable offsets is told that there are none yet");
        producer.commitTransaction();
        Bench.same(11L, committed(consumer, partition), "after the commit");
    }

    private static void offsetsOfAnEmptyGroup(Bench bench) throws Exception {
        String topic = bench.topic(3);
        String group = bench.name();
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        for (int partition = 0; partition < 3; partition++) {
            producer.sendOffsetsToTransaction(at(new TopicPartition(topic, partition), 5 + partition),
                new ConsumerGroupMetadata(group));
        }
        producer.commitTransaction();
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group);
        Bench.same(7L, committed(consumer, new TopicPartition(topic, 2)), "committed");
        Bench.demand(bench.admin().listConsumerGroups().all().get().stream()
            .anyMatch(listing -> listing.groupId().equals(group)), "the group is listed");
    }

    private static void refusedOffsets(Bench bench, TopicPartition partition, ConsumerGroupMetadata group,
            Class<? extends Throwable> why) throws Exception {
        KafkaProducer<String, String> producer = transactional(bench, bench.name());
        producer.beginTransaction();
        Bench.refused(() -> producer.sendOffsetsToTransaction(at(partition, 1), group), why);
        producer.abortTransaction(); // this much is left to it
        producer.beginTransaction();
        producer.commitTransaction();
    }

    private static void staleGeneration(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = bench.member(ledger, group, topic);
        Groups.settled(2, one);
        ConsumerGroupMetadata before = one.ask(KafkaConsumer::groupMetadata);
        Member two = bench.member(ledger, group, topic);
        Groups.settled(2, one, two);
        refusedOffsets(bench, new TopicPartition(topic, 0), before, CommitFailedException.class);
    }

    private static void unknownMember(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        Groups.settled(1, bench.member(new Ledger(), group, topic));
        refusedOffsets(bench, new TopicPartition(topic, 0), new ConsumerGroupMetadata(group, 1, "nobody",
            java.util.Optional.empty()), CommitFailedException.class);
    }

    private static void fencedInstance(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        Member fixed = bench.member(new Ledger(), group, topic, "group.instance.id", "fixed");
        Groups.settled(1, fixed);
        ConsumerGroupMetadata before = fixed.ask(KafkaConsumer::groupMetadata);
        fixed.close();
        Groups.settled(1, bench.member(new Ledger(), group, topic, "group.instance.id", "fixed"));
        refusedOffsets(bench, new TopicPartition(topic, 0), before, FencedInstanceIdException.class);
    }

    private static void compression(Bench bench) throws Exception {
        String topic = bench.topic(1);
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            KafkaProducer<String, String> producer = transactional(bench, bench.name(), "compression.type", codec);
            producer.beginTransaction();
            send(producer, topic, 0, 0, 50);
            producer.commitTransaction();
        }
        Bench.same(200, bench.values(topic, "read_committed").size(), "records");
    }
}
