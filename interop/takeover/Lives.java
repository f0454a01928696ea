import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Java's clients on one address, whoever serves it: a command a line in, `= answer` or `! failure` a line out. */
public class Lives {
    static String bootstrap;
    static Admin admin;
    static final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();
    static final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                System.out.println("= " + answer(line.split(" ")));
            } catch (Exception failure) {
                Throwable cause = failure.getCause() == null ? failure : failure.getCause();
                System.out.println("! " + cause.toString().replace('\n', ' '));
            }
            System.out.flush();
        }
        System.exit(0);
    }

    static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "create": return create(words[1], Integer.parseInt(words[2]), List.of(words).subList(3, words.length));
            case "delete": admin().deleteTopics(List.of(words[1])).all().get(); return "";
            case "grow":
                admin().createPartitions(Map.of(words[1], NewPartitions.increaseTo(Integer.parseInt(words[2])))).all().get();
                return "";
            case "set": return set(ConfigResource.Type.TOPIC, words[1], words[2]);
            case "brokers": return set(ConfigResource.Type.BROKER, "", words[1]);
            case "topics": return String.join(" ", new TreeSet<>(admin().listTopics().names().get()));
            case "ends": return ends(words[1]);
            case "end": return end(words[1], words[2]);
            case "write": return write(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]), words[5]);
            case "transaction": return transaction(words[1], words[2], Integer.parseInt(words[3]), words[4], words[5]);
            case "open": return open(words[1], words[2], words[3], words[4]);
            case "read": return read(words[1], Integer.parseInt(words[2]));
            case "drain": return drain(words[1], Integer.parseInt(words[2]));
            case "close": consumers.remove(words[1]).close(); return "";
            case "topic": return topic(words[1]);
            case "committed": return committed(words[1]);
            case "forget": producers.values().forEach(KafkaProducer::close); producers.clear(); return "";
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    static Admin admin() {
        if (admin == null)
            admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        return admin;
    }

    static String create(String name, int partitions, Collection<String> settings) throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (String setting : settings)
            configs.put(setting.split("=")[0], setting.split("=")[1]);
        return admin().createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs)))
            .topicId(name).get().toString();
    }

    static KafkaProducer<String, String> producer(String name, boolean transactional) {
        return producers.computeIfAbsent(name, key -> {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("max.block.ms", 30_000);
            if (transactional)
                settings.put("transactional.id", name);
            KafkaProducer<String, String> made =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
            if (transactional)
                made.initTransactions();
            return made;
        });
    }

    /** The values are PREFIX and a number; the keys few, so that a compaction would find something to do. */
    static void send(KafkaProducer<String, String> to, String topic, int count, int daysOld, String prefix) {
        int partitions = to.partitionsFor(topic).size();
        long at = System.currentTimeMillis() - daysOld * 86_400_000L;
        for (int i = 0; i < count; i++)
            to.send(new ProducerRecord<>(topic, i % partitions, at, "key-" + i % 4, prefix + i));
        to.flush();
    }

    static String write(String name, String topic, int count, int daysOld, String prefix) {
        send(producer(name, false), topic, count, daysOld, prefix);
        return "";
    }

    static String transaction(String name, String topic, int count, String prefix, String end) {
        KafkaProducer<String, String> in = producer(name, true);
        in.beginTransaction();
        send(in, topic, count, 0, prefix);
        return end(name, end);
    }

    /** Anything but commit and abort leaves the transaction open. */
    static String end(String name, String how) {
        if (how.equals("commit"))
            producer(name, true).commitTransaction();
        else if (how.equals("abort"))
            producer(name, true).abortTransaction();
        return "";
    }

    /** A setting as name=value; without a value it is taken away. */
    static String set(ConfigResource.Type type, String name, String setting) throws Exception {
        String[] parts = setting.split("=");
        AlterConfigOp.OpType kind = parts.length > 1 ? AlterConfigOp.OpType.SET : AlterConfigOp.OpType.DELETE;
        ConfigEntry entry = new ConfigEntry(parts[0], parts.length > 1 ? parts[1] : "");
        admin().incrementalAlterConfigs(Map.of(new ConfigResource(type, name), List.of(new AlterConfigOp(entry, kind)))).all().get();
        return "";
    }

    /** Where each partition starts and ends. */
    static String ends(String topic) throws Exception {
        StringBuilder said = new StringBuilder();
        int partitions = admin().describeTopics(List.of(topic)).topicNameValues().get(topic).get().partitions().size();
        for (int i = 0; i < partitions; i++) {
            TopicPartition one = new TopicPartition(topic, i);
            long start = admin().listOffsets(Map.of(one, OffsetSpec.earliest())).partitionResult(one).get().offset();
            long end = admin().listOffsets(Map.of(one, OffsetSpec.latest())).partitionResult(one).get().offset();
            said.append(i == 0 ? "" : " ").append(start).append("-").append(end);
        }
        return said.toString();
    }

    static String open(String name, String group, String protocol, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<String, String> made =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        made.subscribe(List.of(topic));
        consumers.put(name, made);
        return "";
    }

    /** What comes until there are `count` records, then committed; fewer when nothing more comes for long. */
    static String read(String name, int count) {
        KafkaConsumer<String, String> from = consumers.get(name);
        List<String> values = new ArrayList<>();
        long until = System.currentTimeMillis() + 15_000;
        while (values.size() < count && System.currentTimeMillis() < until)
            for (ConsumerRecord<String, String> one : from.poll(Duration.ofMillis(200)))
                values.add(one.value());
        for (ConsumerRecord<String, String> one : from.poll(Duration.ofMillis(300))) // there must be no more
            values.add(one.value());
        from.commitSync(Duration.ofSeconds(20));
        values.sort(null);
        return String.join(" ", values);
    }

    /** All that there is: until so many came, or for a second nothing more. */
    static String drain(String name, int most) {
        List<String> values = new ArrayList<>();
        long until = System.currentTimeMillis() + 15_000;
        while (values.size() < most && System.currentTimeMillis() < until)
            for (ConsumerRecord<String, String> one : consumers.get(name).poll(Duration.ofMillis(200))) {
                values.add(one.value());
                until = System.currentTimeMillis() + 1_000;
            }
        return String.join(" ", values);
    }

    static String topic(String name) throws Exception {
        TopicDescription found = admin().describeTopics(List.of(name)).topicNameValues().get(name).get();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        Config config = admin().describeConfigs(List.of(resource)).all().get().get(resource);
        Map<String, String> own = new TreeMap<>();
        for (ConfigEntry one : config.entries())
            if (one.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
                own.put(one.name(), one.value());
        StringBuilder said = new StringBuilder(found.topicId() + " " + found.partitions().size());
        own.forEach((key, value) -> said.append(" ").append(key).append("=").append(value));
        return said.toString();
    }

    static String committed(String group) throws Exception {
        Map<String, String> found = new TreeMap<>();
        Map<TopicPartition, OffsetAndMetadata> offsets =
            admin().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        offsets.forEach((partition, offset) -> found.put(partition.toString(), Long.toString(offset.offset())));
        return found.toString();
    }
}
