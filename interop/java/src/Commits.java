import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetMetadataTooLarge;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Committing offsets, and what is read back. */
final class Commits {
    static List<Check> checks() {
        return List.of(
            new Check("commit-sync", Commits::sync),
            new Check("commit-async", Commits::async),
            new Check("commit-async-many", Commits::asyncMany),
            new Check("commit-metadata-and-epoch", Commits::metadata),
            new Check("commit-metadata-limit", Commits::metadataLimit),
            new Check("commit-auto-on-close", Commits::autoOnClose),
            new Check("commit-auto-interval", Commits::autoInterval),
            new Check("commit-without-a-group-member", Commits::standalone),
            new Check("commit-from-outside-an-active-group", Commits::fromOutside),
            new Check("commit-unknown-partition", Commits::unknownPartition),
            new Check("commit-after-eviction", Commits::afterEviction),
            new Check("committed-where-nothing-is", Commits::nothingThere),
            new Check("committed-starts-the-next-one", Commits::startsTheNextOne),
            new Check("commit-deleted-topic", Commits::deletedTopic));
    }

    private static KafkaConsumer<String, String> joined(Bench bench, String group, String topic, String... settings)
            throws Exception {
        String[] all = java.util.Arrays.copyOf(settings, settings.length + 2);
        all[settings.length] = "group.id";
        all[settings.length + 1] = group;
        KafkaConsumer<String, String> consumer = bench.consumer(all);
        consumer.subscribe(List.of(topic));
        Bench.until("it is assigned something", Bench.SOON, () -> {
            consumer.poll(Duration.ofMillis(50));
            return !consumer.assignment().isEmpty();
        });
        // Else committed() may be answered by a request that is under way since before the commit.
        consumer.assignment().forEach(consumer::position);
        return consumer;
    }

    private static long committed(KafkaConsumer<String, String> consumer, TopicPartition partition) {
        OffsetAndMetadata found = consumer.committed(Set.of(partition)).get(partition);
        return found == null ? -1 : found.offset();
    }

    private static void sync(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        bench.produce(topic, 1, 0, 50);
        KafkaConsumer<String, String> consumer = joined(bench, bench.name(), topic);
        Bench.until("all is read", Bench.SOON, () -> {
            consumer.poll(Duration.ofMillis(50));
            return consumer.position(partition) == 50;
        });
        consumer.commitSync();
        Bench.same(50L, committed(consumer, partition), "committed");
        consumer.commitSync(Map.of(partition, new OffsetAndMetadata(7)));
        Bench.same(7L, committed(consumer, partition), "committed by hand, backwards");
    }

    private static void async(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = joined(bench, bench.name(), topic);
        CompletableFuture<Long> told = new CompletableFuture<>();
        consumer.commitAsync(Map.of(partition, new OffsetAndMetadata(3)), (offsets, failure) -> {
            if (failure != null) {
                told.completeExceptionally(failure);
            } else {
                told.complete(offsets.get(partition).offset());
            }
        });
        Bench.until("the callback is called", Bench.SOON, () -> {
            consumer.poll(Duration.ofMillis(20));
            return told.isDone();
        });
        Bench.same(3L, Bench.got(told), "what the callback was told");
        Bench.same(3L, committed(consumer, partition), "committed");
    }

    private static void asyncMany(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = joined(bench, bench.name(), topic);
        int[] calls = {0};
        for (int offset = 1; offset <= 200; offset++) {
            consumer.commitAsync(Map.of(partition, new OffsetAndMetadata(offset)), (offsets, failure) -> {
                Bench.demand(failure == null, "a commit failed: " + failure);
                calls[0]++;
            });
        }
        Bench.until("all callbacks are called", Bench.SOON, () -> {
            consumer.poll(Duration.ofMillis(20));
            return calls[0] == 200;
        });
        Bench.same(200L, committed(consumer, partition), "the last commit stands");
    }

    private static void metadata(Bench bench) throws Exception {
        String topic = bench.topic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        KafkaConsumer<String, String> consumer = joined(bench, bench.name(), topic);
        OffsetAndMetadata noted = new OffsetAndMetadata(5, Optional.of(0), "a note, möglichst kurz");
        OffsetAndMetadata plain = new OffsetAndMetadata(6);
        consumer.commitSync(Map.of(first, noted, second, plain));
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(Set.of(first, second));
        Bench.same(noted, found.get(first), "offset, epoch and note");
        Bench.same(plain, found.get(second), "an offset alone");
    }

    private static void metadataLimit(Bench bench) throws Exception {
        String topic = bench.topic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        KafkaConsumer<String, String> consumer = joined(bench, bench.name(), topic);
        consumer.commitSync(Map.of(first, new OffsetAndMetadata(1, "x".repeat(4096))));
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        offsets.put(first, new OffsetAndMetadata(2, "x".repeat(4097)));
        offsets.put(second, new OffsetAndMetadata(2, "short"));
        Bench.refused(() -> consumer.commitSync(offsets), OffsetMetadataTooLarge.class);
        Bench.same(1L, committed(consumer, first), "the long one is not taken");
        Bench.same(2L, committed(consumer, second), "the other one is");
    }

    private static void autoOnClose(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        bench.produce(topic, 1, 0, 20);
        Member member = bench.member(new Ledger(), group, topic, "enable.auto.commit", "true");
        Bench.until("all is read", Bench.SOON, () -> member.values.size() == 20);
        member.close();
        Bench.same(20L, committed(bench.consumer("group.id", group), new TopicPartition(topic, 0)), "committed");
    }

    private static void autoInterval(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        bench.produce(topic, 1, 0, 20);
        bench.member(new Ledger(), group, topic, "enable.auto.commit", "true", "auto.commit.interval.ms", "300");
        KafkaConsumer<String, String> other = bench.consumer("group.id", group);
        TopicPartition partition = new TopicPartition(topic, 0);
        Bench.until("it is committed", Bench.SOON, () -> committed(other, partition) == 20);
    }

    private static void standalone(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group);
        consumer.assign(List.of(partition));
        consumer.commitSync(Map.of(partition, new OffsetAndMetadata(9)));
        Bench.same(9L, committed(bench.consumer("group.id", group), partition), "committed without joining");
        Bench.same(0, Groups.members(bench, group), "members");
    }

    private static void fromOutside(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        TopicPartition partition = new TopicPartition(topic, 0);
        Groups.settled(1, bench.member(new Ledger(), group, topic));
        KafkaConsumer<String, String> outsider = bench.consumer("group.id", group);
        outsider.assign(List.of(partition));
        Bench.refused(() -> outsider.commitSync(Map.of(partition, new OffsetAndMetadata(9))),
            CommitFailedException.class);
    }

    private static void unknownPartition(Bench bench) throws Exception {
        String topic = bench.topic(1);
        KafkaConsumer<String, String> consumer = joined(bench, bench.name(), topic, "default.api.timeout.ms", "3000");
        Bench.refused(() -> consumer.commitSync(Map.of(new TopicPartition(topic, 5), new OffsetAndMetadata(1))),
            UnknownTopicOrPartitionException.class, TimeoutException.class);
    }

    private static void afterEviction(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        KafkaConsumer<String, String> consumer = joined(bench, group, topic, "max.poll.interval.ms", "2000");
        Bench.until("it is out", Bench.SOON, () -> Groups.members(bench, group) == 0);
        Bench.refused(() -> consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1))),
            CommitFailedException.class);
    }

    private static void nothingThere(Bench bench) throws Exception {
        String topic = bench.topic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        TopicPartition nowhere = new TopicPartition(bench.name(), 3);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", bench.name());
        consumer.assign(List.of(first));
        consumer.commitSync(Map.of(first, new OffsetAndMetadata(4)));
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(Set.of(first, second, nowhere));
        Bench.same(4L, found.get(first).offset(), "committed");
        Bench.demand(found.get(second) == null, "nothing was committed for the second: " + found);
        Bench.demand(found.get(nowhere) == null, "nor for a topic that is not there: " + found);
    }

    private static void startsTheNextOne(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        bench.produce(topic, 1, 0, 30);
        KafkaConsumer<String, String> first = joined(bench, group, topic);
        first.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(25)));
        first.close();
        Member next = bench.member(new Ledger(), group, topic);
        Bench.until("it reads", Bench.SOON, () -> next.values.size() >= 5);
        Bench.same(Groups.numbers(25, 30), List.copyOf(next.values), "what the next one reads");
    }

    private static void deletedTopic(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group);
        consumer.assign(List.of(partition));
        consumer.commitSync(Map.of(partition, new OffsetAndMetadata(4)));
        bench.admin().deleteTopics(List.of(topic)).all().get();
        Bench.until("its offsets go with it", Bench.SOON, () -> bench.admin().listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().isEmpty());
    }
}
