import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;

/** Static members (KIP-345): an instance id outlives the process, until its session is over. */
final class Static {
    static List<Check> checks() {
        return List.of(
            new Check("static-restart-without-rebalance", bench -> restart(bench, Groups.RANGE)),
            new Check("static-restart-cooperative", bench -> restart(bench, Groups.COOPERATIVE)),
            new Check("static-leader-restart", Static::leaderRestart),
            new Check("static-fencing", Static::fencing),
            new Check("static-fenced-commit", Static::fencedCommit),
            new Check("static-session-over", Static::sessionOver),
            new Check("static-and-dynamic", Static::staticAndDynamic));
    }

    private static Member member(Bench bench, Ledger ledger, String group, String topic, String instance) {
        return bench.member(ledger, group, topic, "group.instance.id", instance, "session.timeout.ms", "10000");
    }

    private static void restart(Bench bench, String assignor) throws Exception {
        String topic = bench.topic(4);
        String group = bench.name();
        Ledger ledger = new Ledger();
        String[] settings = {"session.timeout.ms", "20000", Groups.ASSIGNOR, assignor, "group.instance.id", ""};
        Member stays = bench.member(ledger, group, topic, instance(settings, "stays"));
        Member goes = bench.member(ledger, group, topic, instance(settings, "goes"));
        Groups.settled(4, stays, goes);
        Set<TopicPartition> owned = new HashSet<>(goes.owned);
        int generation = stays.generation();
        int told = stays.told.size();

        goes.close(); // a static member does not say that it leaves
        Member back = bench.member(ledger, group, topic, instance(settings, "goes"));
        Groups.settled(4, stays, back);
        Bench.same(owned, new HashSet<>(back.owned), "what it owns after the restart");
        Bench.same(generation, back.generation(), "the generation after the restart");
        Bench.same(generation, stays.generation(), "the other's generation");
        Bench.same(told, stays.told.size(), "how often the other was told something");
        ledger.demandNoOverlap();
    }

    private static String[] instance(String[] settings, String name) {
        String[] all = settings.clone();
        all[all.length - 1] = name;
        return all;
    }

    private static void leaderRestart(Bench bench) throws Exception {
        String topic = bench.topic(4);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member leader = member(bench, ledger, group, topic, "leader");
        Groups.settled(4, leader);
        Member other = member(bench, ledger, group, topic, "other");
        Groups.settled(4, leader, other);
        int generation = other.generation();
        leader.close();
        Member back = member(bench, ledger, group, topic, "leader");
        Groups.settled(4, back, other);
        Bench.same(generation, back.generation(), "the generation after the leader's restart");

        Member third = member(bench, ledger, group, topic, "third"); // there must still be one who assigns
        Groups.settled(4, back, other, third);
        ledger.demandNoOverlap();
    }

    private static void fencing(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Member old = member(bench, new Ledger(), group, topic, "twin");
        Groups.settled(2, old);
        Member young = member(bench, new Ledger(), group, topic, "twin");
        Bench.until("the older is fenced", Bench.SOON, () -> old.died != null);
        Bench.demand(old.died instanceof FencedInstanceIdException, "it died of " + old.died);
        Groups.settled(2, young);
    }

    private static void fencedCommit(Bench bench) throws Exception {
        String topic = bench.topic(1);
        bench.produce(topic, 1, 0, 10);
        String[] twin = {"group.id", bench.name(), "group.instance.id", "twin", "heartbeat.interval.ms", "5000",
            "session.timeout.ms", "20000"};
        KafkaConsumer<String, String> old = bench.consumer(twin);
        old.subscribe(List.of(topic));
        Bench.until("the older reads", Bench.SOON, () -> !old.poll(Duration.ofMillis(100)).isEmpty());
        KafkaConsumer<String, String> young = bench.consumer(twin);
        young.subscribe(List.of(topic));
        Bench.until("the younger reads", Bench.SOON, () -> !young.poll(Duration.ofMillis(100)).isEmpty());
        Bench.refused(() -> old.commitSync(), FencedInstanceIdException.class);
        young.commitSync();
    }

    private static void sessionOver(Bench bench) throws Exception {
        String topic = bench.topic(4);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member stays = bench.member(ledger, group, topic, "group.instance.id", "stays");
        Member goes = bench.member(ledger, group, topic, "group.instance.id", "goes");
        Groups.settled(4, stays, goes);
        goes.close();
        long begun = System.nanoTime();
        Groups.settled(4, stays);
        double seconds = (System.nanoTime() - begun) / 1e9;
        Bench.demand(seconds > 4.5, "its session of 6 s was over after " + seconds + " s");
    }

    private static void staticAndDynamic(Bench bench) throws Exception {
        String topic = bench.topic(4);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member fixed = member(bench, ledger, group, topic, "fixed");
        Member moving = bench.member(ledger, group, topic);
        Groups.settled(4, fixed, moving);
        moving.close(); // leaves at once
        long begun = System.nanoTime();
        Groups.settled(4, fixed);
        Bench.demand((System.nanoTime() - begun) / 1e9 < 5, "a dynamic member's leaving took a session");
        ledger.demandNoOverlap();
    }
}
