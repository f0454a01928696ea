import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of many groups in one process, each on a thread of its own: ADDRESS TOPIC MEMBERS ASSIGNOR GROUPS
 * [ASSIGNOR GROUPS ...]. Whenever one's share changes it prints its group, its number, the time in milliseconds and how
 * many partitions it owns. At the end of standard input all leave.
 */
public final class Members {
    private static final String POLL_MS = "100", SESSION_MS = "6000", HEARTBEAT_MS = "2000";
    private static final long STAGGER_MS = 4_000;

    public static void main(String[] words) throws Exception {
        List<Member> members = new ArrayList<>();
        for (int at = 3; at < words.length; at += 2) {
            int groups = Integer.parseInt(words[at + 1]);
            for (int group = 0; group < groups; group++) {
                for (int number = 0; number < Integer.parseInt(words[2]); number++) {
                    members.add(new Member(words[0], words[1], words[at], group, STAGGER_MS * group / groups, number));
                }
            }
        }
        List<Thread> threads = members.stream().map(Thread::new).toList();
        threads.forEach(Thread::start);
        while (System.in.read() >= 0) { }
        members.forEach(member -> member.consumer.wakeup());
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static final class Member implements Runnable, ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        private final String topic, group;
        private final long startsAfterMs;
        private final int number;
        private final Set<TopicPartition> owned = new HashSet<>();

        Member(String address, String topic, String assignor, int group, long startsAfterMs, int number) {
            this.topic = topic;
            this.group = "java-" + assignor + "-" + group;
            this.startsAfterMs = startsAfterMs;
            this.number = number;
            Properties settings = new Properties();
            settings.put("bootstrap.servers", address);
            settings.put("group.id", this.group);
            settings.put("session.timeout.ms", SESSION_MS);
            settings.put("heartbeat.interval.ms", HEARTBEAT_MS);
            settings.put("enable.auto.commit", "false");
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + switch (assignor) {
                case "range" -> "RangeAssignor";
                case "cooperative-sticky" -> "CooperativeStickyAssignor";
                default -> throw new IllegalArgumentException(assignor);
            });
            consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public void run() {
            try (consumer) {
                Thread.sleep(startsAfterMs);
                consumer.subscribe(List.of(topic), this);
                while (true) {
                    consumer.poll(Duration.ofMillis(Long.parseLong(POLL_MS)));
                }
            } catch (WakeupException leaving) {
                return;
            } catch (InterruptedException never) {
                throw new IllegalStateException(never);
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            owned.addAll(partitions);
            say();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            owned.removeAll(partitions);
            say();
        }

        private void say() {
            System.out.println(group + " " + number + " " + System.currentTimeMillis() + " " + owned.size());
        }
    }
}
