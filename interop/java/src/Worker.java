import java.io.File;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** A process of its own, so that it can die without a word, as processes do. */
final class Worker {
    private static final int EXIT = 9;

    /** Starts a worker: {@code member GROUP TOPIC} or {@code copy GROUP FROM TO ID DIES}. */
    static Process start(Bench bench, String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(
            System.getProperty("java.home") + File.separator + "bin" + File.separator + "java",
            "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
            "-cp", System.getProperty("java.class.path"), "Main", "worker", bench.bootstrap));
        command.addAll(Arrays.asList(words));
        Process process = new ProcessBuilder(command).inheritIO().start();
        bench.later(() -> process.destroyForcibly().waitFor());
        return process;
    }

    static void main(String[] words) throws Exception {
        try (Bench bench = new Bench(words[1], "worker")) {
            switch (words[2]) {
                case "member" -> stay(bench, words[3], words[4]);
                case "copy" -> copy(bench, words[3], words[4], words[5], words[6], words[7]);
                default -> throw new IllegalArgumentException(words[2]);
            }
        }
    }

    private static void stay(Bench bench, String group, String topic) {
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group);
        consumer.subscribe(List.of(topic));
        while (true) {
            consumer.poll(Duration.ofSeconds(1));
        }
    }

    /** Copies a topic exactly once, in transactions; dies at the moment that {@code dies} names, in the third. */
    private static void copy(Bench bench, String group, String from, String to, String id, String dies)
            throws Exception {
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group, "max.poll.records", "40",
            "isolation.level", "read_committed");
        KafkaProducer<String, String> producer =
            Transactions.transactional(bench, id, "transaction.timeout.ms", "8000");
        consumer.subscribe(List.of(from));
        for (int turns = 0; ; ) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            if (records.isEmpty()) {
                continue;
            }
            boolean last = ++turns == 3;
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(to, record.partition(), record.key(), record.value()));
            }
            if (last && dies.equals("after-sending")) {
                producer.flush();
                Runtime.getRuntime().halt(EXIT);
            }
            producer.sendOffsetsToTransaction(positions(records), consumer.groupMetadata());
            if (last && dies.equals("after-offsets")) {
                Runtime.getRuntime().halt(EXIT);
            }
            producer.commitTransaction();
            if (last && dies.equals("after-commit")) {
                Runtime.getRuntime().halt(EXIT);
            }
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> positions(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            positions.put(new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        return positions;
    }
}
