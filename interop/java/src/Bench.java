import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What a check works with: names that no other check uses, and clients that are closed when it is over. */
final class Bench implements AutoCloseable {
    static final Duration SOON = Duration.ofSeconds(30);
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final String RUN = Long.toString(System.currentTimeMillis(), 36);

    final String bootstrap;
    private final String check;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private Admin admin;

    Bench(String bootstrap, String check) {
        this.bootstrap = bootstrap;
        this.check = check;
    }

    /** Returns a name for a topic, a group or a transaction. */
    String name() {
        return "java-" + check + "-" + RUN + "-" + COUNT.incrementAndGet();
    }

    /**
     * Makes a topic and waits until each partition has taken its place. A partition of Apache Kafka that has not yet
     * refuses the first batch and takes the second, and then the first for ever: its number is too low by then.
     */
    String topic(int partitions) throws Exception {
        String topic = name();
        admin().createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
        for (int partition = 0; partition < partitions; partition++) {
            ends.put(new TopicPartition(topic, partition), OffsetSpec.latest());
        }
        until("the partitions of " + topic + " are there", SOON, () -> answered(admin().listOffsets(ends).all()));
        return topic;
    }

    private static boolean answered(Future<?> question) throws InterruptedException {
        try {
            question.get();
            return true;
        } catch (ExecutionException notYet) {
            return false;
        }
    }

    Admin admin() {
        if (admin == null) {
            admin = later(Admin.create(Map.of("bootstrap.servers", bootstrap)));
        }
        return admin;
    }

    /** Returns a consumer with settings given as name, value, name, value. */
    KafkaConsumer<String, String> consumer(String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap,
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false",
            "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "300",
            "default.api.timeout.ms", "20000"));
        return later(new KafkaConsumer<>(with(all, settings), new StringDeserializer(), new StringDeserializer()));
    }

    KafkaProducer<String, String> producer(String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "max.block.ms", "30000"));
        return later(new KafkaProducer<>(with(all, settings), new StringSerializer(), new StringSerializer()));
    }

    /** Returns a consumer of a topic that polls on a thread of its own. */
    Member member(Ledger ledger, String group, String topic, String... settings) {
        String[] all = java.util.Arrays.copyOf(settings, settings.length + 2);
        all[settings.length] = "group.id";
        all[settings.length + 1] = group;
        return later(new Member(consumer(all), ledger, List.of(topic)));
    }

    private static Map<String, Object> with(Map<String, Object> all, String... settings) {
        for (int at = 0; at < settings.length; at += 2) {
            all.put(settings[at], settings[at + 1]);
        }
        return all;
    }

    /** Writes records with the values FROM to TO, less one, one partition after the other. */
    void produce(String topic, int partitions, int from, int to) throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int value = from; value < to; value++) {
                producer.send(new ProducerRecord<>(topic, value % partitions, null, Integer.toString(value)));
            }
        }
    }

    /** Returns the values in a topic from its start to its end, as seen with an isolation level. */
    List<String> values(String topic, String isolation) throws Exception {
        KafkaConsumer<String, String> reader = consumer("isolation.level", isolation);
        List<TopicPartition> partitions = new ArrayList<>();
        reader.partitionsFor(topic).forEach(info -> partitions.add(new TopicPartition(topic, info.partition())));
        reader.assign(partitions);
        Map<TopicPartition, Long> ends = reader.endOffsets(partitions);
        reader.seekToBeginning(partitions);
        List<String> values = new ArrayList<>();
        until("all of " + topic + " is read", SOON, () -> {
            for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(100))) {
                values.add(record.value());
            }
            return ends.entrySet().stream().allMatch(end -> reader.position(end.getKey()) >= end.getValue());
        });
        reader.close();
        return values;
    }

    /** Keeps what must be closed at the end of the check. */
    <T extends AutoCloseable> T later(T closable) {
        open.push(closable);
        return closable;
    }

    @Override
    public void close() {
        for (AutoCloseable one : open) {
            try {
                one.close();
            } catch (Exception failure) {
                // A client that was fenced on purpose may say so once more.
            }
        }
    }

    // --- what a check demands

    static void demand(boolean good, String what) {
        if (!good) {
            throw new AssertionError(what);
        }
    }

    static void same(Object wanted, Object found, String what) {
        demand(wanted.equals(found), what + ": " + found + ", not " + wanted);
    }

    static void until(String what, Duration patience, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + patience.toNanos();
        while (!condition.call()) {
            demand(System.nanoTime() < end, "not within " + patience.toSeconds() + " s: " + what);
            Thread.sleep(20);
        }
    }

    interface Attempt {
        void run() throws Exception;
    }

    /** Demands that something fails with one of these exceptions, as itself or as the cause; returns which. */
    @SafeVarargs
    static Throwable refused(Attempt attempt, Class<? extends Throwable>... wanted) throws Exception {
        try {
            attempt.run();
        } catch (Exception thrown) {
            for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
                for (Class<? extends Throwable> one : wanted) {
                    if (one.isInstance(cause)) {
                        return cause;
                    }
                }
            }
            throw new AssertionError("refused, but with " + Main.story(thrown));
        }
        throw new AssertionError("not refused with " + wanted[0].getSimpleName());
    }

    /** Returns a future's value, and throws what it failed with itself. */
    static <T> T got(Future<T> future) throws Exception {
        try {
            return future.get();
        } catch (ExecutionException failure) {
            throw failure.getCause() instanceof Exception cause ? cause : failure;
        }
    }
}
