import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;

/** A member of a group, polling on its own thread: commits what it read before it gives partitions back. */
final class Member implements AutoCloseable, ConsumerRebalanceListener {
    final Set<TopicPartition> owned = ConcurrentHashMap.newKeySet();
    final List<String> told = new CopyOnWriteArrayList<>(); // "assigned 2", "revoked 1", "lost 3"
    final List<String> values = new CopyOnWriteArrayList<>();
    volatile Throwable died;

    private final KafkaConsumer<String, String> consumer;
    private final Ledger ledger;
    private final ConcurrentLinkedQueue<Runnable> errands = new ConcurrentLinkedQueue<>();
    private final Thread thread;
    private volatile boolean stopping;

    Member(KafkaConsumer<String, String> consumer, Ledger ledger, Collection<String> topics) {
        this.consumer = consumer;
        this.ledger = ledger;
        this.thread = new Thread(() -> live(() -> consumer.subscribe(topics, this)));
        thread.setDaemon(true);
        thread.start();
    }

    Member(KafkaConsumer<String, String> consumer, Ledger ledger, Pattern topics) {
        this.consumer = consumer;
        this.ledger = ledger;
        this.thread = new Thread(() -> live(() -> consumer.subscribe(topics, this)));
        thread.setDaemon(true);
        thread.start();
    }

    private void live(Runnable subscribe) {
        try {
            subscribe.run();
            while (!stopping) {
                turn();
            }
        } catch (Throwable failure) {
            died = failure;
        }
        consumer.close();
    }

    private void turn() {
        for (Runnable errand = errands.poll(); errand != null; errand = errands.poll()) {
            errand.run();
        }
        try {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                values.add(record.value());
            }
        } catch (WakeupException stop) {
            // `stopping` is looked at next
        }
    }

    /** Does something with the consumer on its own thread, between two polls; returns what came of it. */
    <T> T ask(Function<KafkaConsumer<String, String>, T> question) throws Exception {
        CompletableFuture<T> answer = new CompletableFuture<>();
        errands.add(() -> {
            try {
                answer.complete(question.apply(consumer));
            } catch (Throwable failure) {
                answer.completeExceptionally(failure);
            }
        });
        return Bench.got(answer);
    }

    int generation() throws Exception {
        return ask(it -> it.groupMetadata().generationId());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        ledger.claim(this, partitions);
        owned.addAll(partitions);
        told.add("assigned " + partitions.size());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException alreadyOn) {
            // as it may be with static members; what was read is read again
        }
        owned.removeAll(partitions);
        ledger.release(this, partitions);
        told.add("revoked " + partitions.size());
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        owned.removeAll(partitions);
        ledger.release(this, partitions);
        told.add("lost " + partitions.size());
    }

    @Override
    public void close() throws Exception {
        stopping = true;
        thread.join(20_000);
    }
}
