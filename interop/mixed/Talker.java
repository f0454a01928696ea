import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that tells on standard output, a JSON object a line, what it is given and what it reads, until
 * its standard input ends. {@code talker.py} says the same for the clients in Python.
 *
 * <p>Usage: {@code Talker TOPIC NAME=VALUE ...}, where the names are a consumer's settings.
 */
final class Talker implements ConsumerRebalanceListener {
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private static final String STRATEGY = "partition.assignment.strategy";

    private final KafkaConsumer<byte[], byte[]> consumer;
    private String said = "";

    private Talker(Map<String, Object> settings) {
        settings.computeIfPresent(STRATEGY, (name, short_) -> ASSIGNORS.get(short_));
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] words) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        for (String word : List.of(words).subList(1, words.length)) {
            String[] pair = word.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        new Talker(settings).live(words[0]);
    }

    private void live(String topic) throws IOException {
        consumer.subscribe(List.of(topic), this);
        while (System.in.available() == 0) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
            for (TopicPartition partition : records.partitions()) {
                List<ConsumerRecord<byte[], byte[]>> some = records.records(partition);
                say("read", "\"partition\":" + partition.partition() + ",\"first\":" + some.get(0).offset()
                    + ",\"last\":" + some.get(some.size() - 1).offset());
            }
            if (!records.isEmpty()) {
                commit();
            }
            sayWhereItStands();
        }
        say("closing", "\"partitions\":[]");
        consumer.close();
    }

    private void commit() {
        try {
            consumer.commitSync();
        } catch (KafkaException rebalanced) {
            // what was read is read again by whoever comes next
        }
    }

    private void sayWhereItStands() {
        String now = "\"generation\":" + consumer.groupMetadata().generationId()
            + ",\"owned\":" + numbers(consumer.assignment());
        if (!now.equals(said)) {
            said = now;
            say("state", now);
        }
    }

    private static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new)).toString();
    }

    private static void say(String kind, String rest) {
        System.out.println("{\"kind\":\"" + kind + "\",\"at_ns\":" + System.nanoTime() + "," + rest + "}");
        System.out.flush();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        say("assigned", "\"partitions\":" + numbers(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        say("revoked", "\"partitions\":" + numbers(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        say("lost", "\"partitions\":" + numbers(partitions));
    }
}
