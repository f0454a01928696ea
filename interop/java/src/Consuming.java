import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidSessionTimeoutException;
import org.apache.kafka.common.errors.WakeupException;

/** Positions, pauses, wake-ups, and what happens to a member that does not poll. */
final class Consuming {
    static List<Check> checks() {
        return List.of(
            new Check("consume-seek-and-position", Consuming::seek),
            new Check("consume-seek-to-ends", Consuming::seekToEnds),
            new Check("consume-offsets-for-times", Consuming::offsetsForTimes),
            new Check("consume-pause-and-resume", Consuming::pause),
            new Check("consume-wakeup", Consuming::wakeup),
            new Check("consume-reset-latest", Consuming::resetLatest),
            new Check("consume-reset-none", Consuming::resetNone),
            new Check("consume-out-of-range", Consuming::outOfRange),
            new Check("consume-max-poll-interval", Consuming::maxPollInterval),
            new Check("consume-session-bounds", Consuming::sessionBounds),
            new Check("consume-unsubscribe-leaves", Consuming::unsubscribeLeaves),
            new Check("consume-close-leaves", Consuming::closeLeaves),
            new Check("consume-lag", Consuming::lag));
    }

    private static List<String> some(KafkaConsumer<String, String> consumer, int least) throws Exception {
        List<String> values = new ArrayList<>();
        Bench.until(least + " records are read", Bench.SOON, () -> {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                values.add(record.value());
            }
            return values.size() >= least;
        });
        return values;
    }

    private static void seek(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        bench.produce(topic, 1, 0, 100);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", bench.name());
        consumer.subscribe(List.of(topic));
        some(consumer, 1);
        consumer.seek(partition, 90);
        Bench.same(90L, consumer.position(partition), "position");
        Bench.same(Groups.numbers(90, 100), some(consumer, 10), "what is read from there");
        Bench.same(100L, consumer.position(partition), "position at the end");
    }

    private static void seekToEnds(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        bench.produce(topic, 1, 0, 10);
        KafkaConsumer<String, String> consumer = bench.consumer();
        consumer.assign(List.of(partition));
        consumer.seekToEnd(List.of(partition));
        Bench.same(10L, consumer.position(partition), "the end");
        consumer.seekToBeginning(List.of(partition));
        Bench.same(0L, consumer.position(partition), "the beginning");
        Bench.same(0L, consumer.beginningOffsets(List.of(partition)).get(partition), "beginning");
        Bench.same(10L, consumer.endOffsets(List.of(partition)).get(partition), "end");
    }

    private static void offsetsForTimes(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        long start = System.currentTimeMillis() - 100_000;
        try (KafkaProducer<String, String> producer = bench.producer()) {
            for (int at = 0; at < 10; at++) {
                producer.send(new ProducerRecord<>(topic, 0, start + at * 1000, null, "v" + at));
            }
        }
        KafkaConsumer<String, String> consumer = bench.consumer();
        var found = consumer.offsetsForTimes(Map.of(partition, start + 4_500));
        Bench.same(5L, found.get(partition).offset(), "the first offset not before the time");
        Bench.same(start + 5_000, found.get(partition).timestamp(), "its time");
        var none = consumer.offsetsForTimes(Map.of(partition, start + 50_000));
        Bench.demand(none.get(partition) == null, "nothing is so late: " + none);
    }

    private static void pause(Bench bench) throws Exception {
        String topic = bench.topic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        bench.produce(topic, 2, 0, 100);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", bench.name(), "max.poll.records", "5");
        consumer.subscribe(List.of(topic));
        Bench.until("it is assigned both", Bench.SOON, () -> {
            consumer.poll(Duration.ZERO);
            return consumer.assignment().size() == 2;
        });
        consumer.pause(Set.of(first));
        consumer.seekToBeginning(consumer.assignment());
        List<String> others = some(consumer, 50);
        Bench.demand(others.stream().allMatch(value -> Integer.parseInt(value) % 2 == 1), "paused: " + others);
        consumer.resume(Set.of(first));
        Bench.same(50, some(consumer, 50).size(), "records after resuming");
    }

    private static void wakeup(Bench bench) throws Exception {
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", bench.name());
        consumer.subscribe(List.of(bench.topic(1)));
        consumer.poll(Duration.ofSeconds(2));
        new Thread(() -> {
            try {
                Thread.sleep(500);
            } catch (InterruptedException over) {
                Thread.currentThread().interrupt();
            }
            consumer.wakeup();
        }).start();
        Bench.refused(() -> consumer.poll(Duration.ofSeconds(20)), WakeupException.class);
        consumer.poll(Duration.ofMillis(100)); // once only
    }

    private static void resetLatest(Bench bench) throws Exception {
        String topic = bench.topic(1);
        bench.produce(topic, 1, 0, 10);
        KafkaConsumer<String, String> consumer =
            bench.consumer("group.id", bench.name(), "auto.offset.reset", "latest");
        consumer.subscribe(List.of(topic));
        Bench.until("it has a position", Bench.SOON, () -> {
            consumer.poll(Duration.ofMillis(100));
            return !consumer.assignment().isEmpty() && consumer.position(new TopicPartition(topic, 0)) == 10;
        });
        bench.produce(topic, 1, 10, 13);
        Bench.same(Groups.numbers(10, 13), some(consumer, 3), "only what came later");
    }

    private static void resetNone(Bench bench) throws Exception {
        String topic = bench.topic(1);
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", bench.name(), "auto.offset.reset", "none");
        consumer.subscribe(List.of(topic));
        Bench.refused(() -> {
            for (int turn = 0; turn < 50; turn++) {
                consumer.poll(Duration.ofMillis(200));
            }
        }, NoOffsetForPartitionException.class);
    }

    private static void outOfRange(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        bench.produce(topic, 1, 0, 10);
        KafkaConsumer<String, String> strict = bench.consumer("auto.offset.reset", "none");
        strict.assign(List.of(partition));
        strict.seek(partition, 5_000);
        Bench.refused(() -> {
            for (int turn = 0; turn < 50; turn++) {
                strict.poll(Duration.ofMillis(200));
            }
        }, OffsetOutOfRangeException.class);
        KafkaConsumer<String, String> lenient = bench.consumer();
        lenient.assign(List.of(partition));
        lenient.seek(partition, 5_000);
        Bench.same(Groups.numbers(0, 10), some(lenient, 10), "from the start again");
    }

    private static void maxPollInterval(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        KafkaConsumer<String, String> slow = bench.consumer("group.id", group, "max.poll.interval.ms", "2000");
        slow.subscribe(List.of(topic));
        Bench.until("it is in", Bench.SOON, () -> {
            slow.poll(Duration.ofMillis(100));
            return slow.assignment().size() == 2;
        });
        Member other = bench.member(new Ledger(), group, topic);
        Bench.until("the other has it all", Bench.SOON, () -> other.owned.size() == 2);
        Bench.same(1, Groups.members(bench, group), "members");
        Bench.until("it comes back by polling", Bench.SOON, () -> {
            slow.poll(Duration.ofMillis(100));
            return slow.assignment().size() == 1;
        });
    }

    private static void sessionBounds(Bench bench) throws Exception {
        String topic = bench.topic(1);
        for (String session : List.of("5999", "1800001")) {
            KafkaConsumer<String, String> consumer = bench.consumer("group.id", bench.name(),
                "session.timeout.ms", session, "request.timeout.ms", "2000000", "max.poll.interval.ms", "1900000",
                "default.api.timeout.ms", "2000000");
            consumer.subscribe(List.of(topic));
            Bench.refused(() -> consumer.poll(Duration.ofSeconds(20)), InvalidSessionTimeoutException.class);
        }
    }

    private static void unsubscribeLeaves(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group, "session.timeout.ms", "45000");
        consumer.subscribe(List.of(topic));
        Bench.until("it is in", Bench.SOON, () -> {
            consumer.poll(Duration.ofMillis(100));
            return Groups.members(bench, group) == 1 && !consumer.assignment().isEmpty();
        });
        consumer.unsubscribe();
        Bench.until("the group is empty", Duration.ofSeconds(5), () -> Groups.members(bench, group) == 0);
    }

    private static void closeLeaves(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = bench.name();
        Member member = bench.member(new Ledger(), group, topic, "session.timeout.ms", "45000");
        Groups.settled(1, member);
        member.close();
        Bench.until("the group is empty", Duration.ofSeconds(5), () -> Groups.members(bench, group) == 0);
    }

    private static void lag(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        bench.produce(topic, 1, 0, 40);
        KafkaConsumer<String, String> consumer = bench.consumer("max.poll.records", "10");
        consumer.assign(List.of(partition));
        some(consumer, 10);
        Bench.until("the lag is known", Bench.SOON, () -> {
            consumer.poll(Duration.ZERO);
            return consumer.currentLag(partition).isPresent();
        });
        Bench.same(40 - consumer.position(partition), consumer.currentLag(partition).getAsLong(), "lag");
    }
}
