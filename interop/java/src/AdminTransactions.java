import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** What the Admin client says of transactions and producers, and does to them. */
final class AdminTransactions {
    static List<Check> checks() {
        return List.of(
            new Check("admin-describe-producers", AdminTransactions::describeProducers),
            new Check("admin-list-transactions", AdminTransactions::list),
            new Check("admin-list-transactions-filters", AdminTransactions::filters),
            new Check("admin-describe-transactions", AdminTransactions::describe),
            new Check("admin-abort-transaction", AdminTransactions::abort),
            new Check("admin-fence-producers", AdminTransactions::fence));
    }

    /** A producer with an open transaction that has written one record to partition 0 of a topic. */
    private record Open(KafkaProducer<String, String> producer, String id, TopicPartition partition) {
        static Open in(Bench bench, String topic) throws Exception {
            String id = bench.name();
            KafkaProducer<String, String> producer = Transactions.transactional(bench, id);
            producer.beginTransaction();
            Transactions.send(producer, topic, 0, 0, 1);
            return new Open(producer, id, new TopicPartition(topic, 0));
        }

        TransactionDescription described(Bench bench) throws Exception {
            return bench.admin().describeTransactions(List.of(id)).all().get().get(id);
        }
    }

    private static List<ProducerState> producers(Bench bench, TopicPartition partition) throws Exception {
        return bench.admin().describeProducers(List.of(partition)).all().get().get(partition).activeProducers();
    }

    private static void describeProducers(Bench bench) throws Exception {
        Open open = Open.in(bench, bench.topic(1));
        ProducerState state = producers(bench, open.partition()).get(0);
        TransactionDescription transaction = open.described(bench);
        Bench.same(transaction.producerId(), state.producerId(), "producer id");
        Bench.same(transaction.producerEpoch(), state.producerEpoch(), "epoch");
        Bench.same(0, state.lastSequence(), "last sequence");
        Bench.same(0L, state.currentTransactionStartOffset().getAsLong(), "start of the transaction");
        open.producer().commitTransaction();
        Bench.until("the transaction is over", Bench.SOON,
            () -> producers(bench, open.partition()).get(0).currentTransactionStartOffset().isEmpty());
    }

    private static Map<String, TransactionListing> listed(Bench bench, ListTransactionsOptions options)
            throws Exception {
        return bench.admin().listTransactions(options).all().get().stream()
            .collect(Collectors.toMap(TransactionListing::transactionalId, listing -> listing));
    }

    private static void list(Bench bench) throws Exception {
        Open open = Open.in(bench, bench.topic(1));
        TransactionListing listing = listed(bench, new ListTransactionsOptions()).get(open.id());
        Bench.same(TransactionState.ONGOING, listing.state(), "state");
        Bench.same(open.described(bench).producerId(), listing.producerId(), "producer id");
        open.producer().abortTransaction();
        Bench.until("it is aborted", Bench.SOON, () -> listed(bench, new ListTransactionsOptions()).get(open.id())
            .state() == TransactionState.COMPLETE_ABORT);
    }

    private static void filters(Bench bench) throws Exception {
        String topic = bench.topic(1);
        Open open = Open.in(bench, topic);
        Open done = Open.in(bench, topic);
        done.producer().commitTransaction();
        Set<String> ongoing = listed(bench, new ListTransactionsOptions()
            .filterStates(Set.of(TransactionState.ONGOING))).keySet();
        Bench.demand(ongoing.contains(open.id()) && !ongoing.contains(done.id()), "by state");
        long producer = open.described(bench).producerId();
        Bench.same(Set.of(open.id()), listed(bench, new ListTransactionsOptions()
            .filterProducerIds(Set.of(producer))).keySet(), "by producer id");
        Bench.demand(!listed(bench, new ListTransactionsOptions().filterOnDuration(600_000)).containsKey(open.id()),
            "it has not run for ten minutes");
        Bench.until("it runs for half a second", Bench.SOON,
            () -> listed(bench, new ListTransactionsOptions().filterOnDuration(500)).containsKey(open.id()));
    }

    private static void describe(Bench bench) throws Exception {
        Open open = Open.in(bench, bench.topic(2));
        TransactionDescription found = open.described(bench);
        Bench.same(TransactionState.ONGOING, found.state(), "state");
        Bench.same(60_000L, found.transactionTimeoutMs(), "timeout");
        Bench.same(Set.of(open.partition()), found.topicPartitions(), "partitions");
        Bench.demand(found.transactionStartTimeMs().isPresent(), "it has a start");
        open.producer().commitTransaction();
        Bench.until("it is over", Bench.SOON, () -> open.described(bench).state() == TransactionState.COMPLETE_COMMIT);
        Bench.same(Set.of(), open.described(bench).topicPartitions(), "partitions after it");
        Bench.refused(() -> bench.admin().describeTransactions(List.of(bench.name())).all().get(),
            TransactionalIdNotFoundException.class);
    }

    private static void abort(Bench bench) throws Exception {
        String topic = bench.topic(1);
        Open open = Open.in(bench, topic);
        Transactions.send(bench.producer(), topic, 0, 5, 7);
        ProducerState state = producers(bench, open.partition()).get(0);
        bench.admin().abortTransaction(new AbortTransactionSpec(open.partition(), state.producerId(),
            (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all().get();
        Bench.same(Groups.numbers(5, 7), bench.values(topic, "read_committed"), "what it held back");
    }

    private static void fence(Bench bench) throws Exception {
        String topic = bench.topic(1);
        Open open = Open.in(bench, topic);
        bench.admin().fenceProducers(List.of(open.id())).all().get();
        Bench.refused(() -> open.producer().send(new ProducerRecord<>(topic, 0, null, "fenced")).get(),
            ProducerFencedException.class, InvalidProducerEpochException.class);
        bench.produce(topic, 1, 5, 7);
        Bench.same(Groups.numbers(5, 7), bench.values(topic, "read_committed"), "committed");
    }
}
