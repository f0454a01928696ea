import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;

/** Cooperative rebalancing (KIP-429): only what moves is given back, and what stays is read on. */
final class Cooperative {
    private static final int PARTITIONS = 8;

    static List<Check> checks() {
        return List.of(
            new Check("cooperative-only-what-moves", Cooperative::onlyWhatMoves),
            new Check("cooperative-reads-on-meanwhile", Cooperative::readsOn),
            new Check("cooperative-lost-after-eviction", Cooperative::lostAfterEviction),
            new Check("cooperative-many-come-and-go", Cooperative::manyComeAndGo));
    }

    private static Member member(Bench bench, Ledger ledger, String group, String topic) {
        return bench.member(ledger, group, topic, Groups.ASSIGNOR, Groups.COOPERATIVE);
    }

    private static void onlyWhatMoves(Bench bench) throws Exception {
        String topic = bench.topic(PARTITIONS);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = member(bench, ledger, group, topic);
        Groups.settled(PARTITIONS, one);
        Member two = member(bench, ledger, group, topic);
        Groups.settled(PARTITIONS, one, two);
        Set<TopicPartition> kept = new HashSet<>(one.owned);
        Member three = member(bench, ledger, group, topic);
        Groups.settled(PARTITIONS, one, two, three);

        Bench.demand(kept.containsAll(one.owned), "what it kept it had before");
        Bench.demand(!one.told.contains("revoked " + PARTITIONS), "it gave back all: " + one.told);
        Bench.demand(one.told.contains("revoked 4"), "half went to the second: " + one.told);
        Bench.demand(three.told.stream().noneMatch(word -> word.startsWith("revoked")), "third: " + three.told);
        three.close();
        Groups.settled(PARTITIONS, one, two);
        Bench.demand(one.told.stream().noneMatch(word -> word.startsWith("lost")), "nothing is lost: " + one.told);
        ledger.demandNoOverlap();
    }

    /** While one member sits in its listener, which holds up the rebalance, the other reads on. */
    private static void readsOn(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = member(bench, ledger, group, topic);
        Member two = member(bench, ledger, group, topic);
        Groups.settled(2, one, two);
        Thread holdingUp = new Thread(() -> sleepWithin(two, Duration.ofSeconds(4)));
        holdingUp.start();
        Member three = member(bench, ledger, group, topic);
        Thread.sleep(800); // heartbeats have told the first of the rebalance by now
        int before = one.values.size();
        bench.produce(topic, 2, 0, 100);
        Bench.until("it reads during the rebalance", Duration.ofSeconds(2), () -> one.values.size() >= before + 50);
        Bench.same(0, three.told.size(), "what the newcomer was told meanwhile");
        holdingUp.join();
        Bench.until("the newcomer is in", Bench.SOON, () -> three.told.contains("assigned 0"));
        ledger.demandNoOverlap();
    }

    private static void sleepWithin(Member member, Duration time) {
        try {
            member.ask(it -> {
                try {
                    Thread.sleep(time.toMillis());
                } catch (InterruptedException over) {
                    Thread.currentThread().interrupt();
                }
                return null;
            });
        } catch (Exception failure) {
            throw new AssertionError(failure);
        }
    }

    private static void lostAfterEviction(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member slow = bench.member(ledger, group, topic, Groups.ASSIGNOR, Groups.COOPERATIVE,
            "max.poll.interval.ms", "2500");
        Groups.settled(2, slow);
        Thread away = new Thread(() -> sleepWithin(slow, Duration.ofSeconds(6)));
        away.start();
        Bench.until("it is out", Bench.SOON, () -> Groups.members(bench, group) == 0);
        away.join();
        Bench.until("it comes back", Bench.SOON, () -> slow.told.contains("lost 2") && slow.owned.size() == 2);
    }

    private static void manyComeAndGo(Bench bench) throws Exception {
        String topic = bench.topic(PARTITIONS);
        String group = bench.name();
        Ledger ledger = new Ledger();
        bench.produce(topic, PARTITIONS, 0, 200);
        Member stays = member(bench, ledger, group, topic);
        List<Member> all = new ArrayList<>(List.of(stays));
        for (int round = 0; round < 3; round++) {
            Member one = member(bench, ledger, group, topic);
            Member two = member(bench, ledger, group, topic);
            all.addAll(List.of(one, two));
            Groups.settled(PARTITIONS, stays, one, two);
            one.close();
            Groups.settled(PARTITIONS, stays, two);
            two.close();
            Groups.settled(PARTITIONS, stays);
        }
        ledger.demandNoOverlap();
        Member[] members = all.toArray(new Member[0]);
        Bench.until("all is read", Bench.SOON, () -> Groups.read(members).containsAll(Groups.numbers(0, 200)));
        Bench.same(200, Groups.read(members).size(), "records read");
    }
}
