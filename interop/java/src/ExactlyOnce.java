import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Consume, transform, produce: each record of the input is in the output once, whoever dies meanwhile. */
final class ExactlyOnce {
    private static final int RECORDS = 600;
    private static final int PARTITIONS = 4;

    static List<Check> checks() {
        return List.of(
            new Check("exactly-once-dies-after-sending", bench -> dies(bench, "after-sending")),
            new Check("exactly-once-dies-after-offsets", bench -> dies(bench, "after-offsets")),
            new Check("exactly-once-dies-after-commit", bench -> dies(bench, "after-commit")),
            new Check("exactly-once-two-workers-one-dies", ExactlyOnce::oneOfTwo));
    }

    /** One worker dies in the middle; another with the same transactional id takes over. */
    private static void dies(Bench bench, String moment) throws Exception {
        String[] topics = {bench.topic(PARTITIONS), bench.topic(PARTITIONS)};
        String group = bench.name();
        String id = bench.name();
        bench.produce(topics[0], PARTITIONS, 0, RECORDS);
        Process first = Worker.start(bench, "copy", group, topics[0], topics[1], id, moment);
        Bench.demand(first.waitFor(45, TimeUnit.SECONDS), "it did not die");
        Bench.same(9, first.exitValue(), "how the first one ended");
        Worker.start(bench, "copy", group, topics[0], topics[1], id, "never");
        demandEachOnce(bench, topics[1]);
    }

    /** Two workers of one group; one dies within a transaction that nobody ends but the broker, by its time-out. */
    private static void oneOfTwo(Bench bench) throws Exception {
        String[] topics = {bench.topic(PARTITIONS), bench.topic(PARTITIONS)};
        String group = bench.name();
        Process first = Worker.start(bench, "copy", group, topics[0], topics[1], bench.name(), "after-sending");
        Worker.start(bench, "copy", group, topics[0], topics[1], bench.name(), "never");
        Bench.until("both are in", Duration.ofSeconds(60), () -> Groups.stable(bench, group, 2));
        bench.produce(topics[0], PARTITIONS, 0, RECORDS); // each has its half to read
        Bench.demand(first.waitFor(45, TimeUnit.SECONDS), "it did not die");
        demandEachOnce(bench, topics[1]);
    }

    private static void demandEachOnce(Bench bench, String topic) throws Exception {
        Bench.until("all is copied", Duration.ofSeconds(60),
            () -> bench.values(topic, "read_committed").size() >= RECORDS);
        List<String> values = bench.values(topic, "read_committed");
        Bench.same(RECORDS, values.size(), "records in the output");
        Bench.same(RECORDS, (int) values.stream().distinct().count(), "different ones");
    }
}
