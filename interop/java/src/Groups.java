import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.ConsumerGroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InconsistentGroupProtocolException;

/** Members come and go; the partitions of a topic are shared out among those who are there. */
@SuppressWarnings("deprecation") // a group's state has a newer name, which release 3.9 does not know
final class Groups {
    private static final int PARTITIONS = 6;
    static final String ASSIGNOR = "partition.assignment.strategy";
    static final String RANGE = RangeAssignor.class.getName();
    static final String COOPERATIVE = CooperativeStickyAssignor.class.getName();

    static List<Check> checks() {
        return List.of(
            new Check("group-range", bench -> comingAndGoing(bench, RANGE)),
            new Check("group-roundrobin", bench -> comingAndGoing(bench, RoundRobinAssignor.class.getName())),
            new Check("group-sticky", bench -> comingAndGoing(bench, StickyAssignor.class.getName())),
            new Check("group-cooperative-sticky", bench -> comingAndGoing(bench, COOPERATIVE)),
            new Check("group-default-assignors", bench -> comingAndGoing(bench, RANGE + "," + COOPERATIVE)),
            new Check("group-upgrade-to-cooperative", Groups::rollingUpgrade),
            new Check("group-no-common-assignor", Groups::noCommonAssignor),
            new Check("group-pattern-subscription", Groups::patternSubscription),
            new Check("group-partitions-added", Groups::partitionsAdded),
            new Check("group-more-members-than-partitions", Groups::idleMembers),
            new Check("group-two-topics-different-subscriptions", Groups::differentSubscriptions),
            new Check("group-member-killed", Groups::memberKilled),
            new Check("group-enforced-rebalance", Groups::enforcedRebalance),
            new Check("group-eager-revokes-all", Groups::eagerRevokesAll));
    }

    /** Waits until each member owns `each` partitions or one more, and together they own `all`. */
    static void settled(int all, Member... members) throws Exception {
        int each = all / members.length;
        Bench.until("shared out, now " + Arrays.toString(members), Bench.SOON, () -> {
            Set<TopicPartition> together = new HashSet<>();
            int sum = 0;
            for (Member member : members) {
                if (member.died != null) {
                    throw new AssertionError("a member died", member.died);
                }
                int count = member.owned.size();
                if (count < each || count > each + 1) {
                    return false;
                }
                sum += count;
                together.addAll(member.owned);
            }
            return sum == all && together.size() == all;
        });
    }

    static List<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(Integer::toString).toList();
    }

    private static void comingAndGoing(Bench bench, String assignors) throws Exception {
        String topic = bench.topic(PARTITIONS);
        String group = bench.name();
        Ledger ledger = new Ledger();
        bench.produce(topic, PARTITIONS, 0, 300);
        Member first = bench.member(ledger, group, topic, ASSIGNOR, assignors);
        settled(PARTITIONS, first);
        Member second = bench.member(ledger, group, topic, ASSIGNOR, assignors);
        settled(PARTITIONS, first, second);
        Member third = bench.member(ledger, group, topic, ASSIGNOR, assignors);
        settled(PARTITIONS, first, second, third);

        bench.produce(topic, PARTITIONS, 300, 600);
        Member[] members = {first, second, third};
        Bench.until("all is read", Bench.SOON, () -> read(members).containsAll(numbers(0, 600)));
        first.close(); // the leader, in most cases
        settled(PARTITIONS, second, third);
        second.close();
        settled(PARTITIONS, third);

        bench.produce(topic, PARTITIONS, 600, 900);
        Bench.until("the last one reads on", Bench.SOON, () -> third.values.containsAll(numbers(600, 900)));
        ledger.demandNoOverlap();
        Bench.same(900, read(members).size(), "records read, each once as all was committed before it was given back");
    }

    static List<String> read(Member... members) {
        List<String> all = new ArrayList<>();
        for (Member member : members) {
            all.addAll(member.values);
        }
        return all;
    }

    /** KIP-429's way from range to cooperative-sticky: every member restarts twice, first with both. */
    private static void rollingUpgrade(Bench bench) throws Exception {
        String topic = bench.topic(PARTITIONS);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = bench.member(ledger, group, topic, ASSIGNOR, RANGE);
        Member two = bench.member(ledger, group, topic, ASSIGNOR, RANGE);
        settled(PARTITIONS, one, two);
        for (String assignors : List.of(COOPERATIVE + "," + RANGE, COOPERATIVE)) {
            one.close();
            one = bench.member(ledger, group, topic, ASSIGNOR, assignors);
            settled(PARTITIONS, one, two);
            two.close();
            two = bench.member(ledger, group, topic, ASSIGNOR, assignors);
            settled(PARTITIONS, one, two);
        }
        ledger.demandNoOverlap();
        Bench.until("the group goes by cooperative-sticky", Bench.SOON, () -> bench.admin()
            .describeConsumerGroups(List.of(group)).all().get().get(group)
            .partitionAssignor().equals("cooperative-sticky"));
    }

    private static void noCommonAssignor(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = bench.member(ledger, group, topic, ASSIGNOR, RANGE);
        settled(2, one);
        Member other = bench.member(ledger, group, topic, ASSIGNOR, StickyAssignor.class.getName());
        Bench.until("the other is refused", Bench.SOON, () -> other.died != null);
        Bench.demand(other.died instanceof InconsistentGroupProtocolException, "refused with " + other.died);
        settled(2, one);
    }

    private static void patternSubscription(Bench bench) throws Exception {
        String first = bench.topic(1);
        Pattern pattern = Pattern.compile(first.replaceFirst("-\\d+$", "") + "-.*");
        Member member = bench.later(new Member(
            bench.consumer("group.id", bench.name(), "metadata.max.age.ms", "500"), new Ledger(), pattern));
        Bench.until("the first topic is found", Bench.SOON, () -> member.owned.contains(new TopicPartition(first, 0)));
        String second = bench.topic(1);
        Bench.until("the second is found", Bench.SOON, () -> member.owned.contains(new TopicPartition(second, 0)));
    }

    private static void partitionsAdded(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = bench.member(ledger, group, topic, "metadata.max.age.ms", "500");
        Member two = bench.member(ledger, group, topic, "metadata.max.age.ms", "500");
        settled(2, one, two);
        bench.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
        settled(4, one, two);
        ledger.demandNoOverlap();
    }

    private static void idleMembers(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member[] members = new Member[4];
        for (int at = 0; at < members.length; at++) {
            members[at] = bench.member(ledger, group, topic);
        }
        Bench.until("all four are in", Bench.SOON, () -> ledger.owned() == 2 && stable(bench, group, 4));
        ledger.demandNoOverlap();
    }

    static boolean stable(Bench bench, String group, int members) throws Exception {
        Optional<ConsumerGroupDescription> found = described(bench, group);
        return found.isPresent() && found.get().members().size() == members
            && found.get().state() == ConsumerGroupState.STABLE;
    }

    static int members(Bench bench, String group) throws Exception {
        return described(bench, group).map(found -> found.members().size()).orElse(0);
    }

    private static Optional<ConsumerGroupDescription> described(Bench bench, String group) throws Exception {
        try {
            return Optional.of(Bench.got(bench.admin().describeConsumerGroups(List.of(group)).all()).get(group));
        } catch (GroupIdNotFoundException notYet) {
            return Optional.empty();
        }
    }

    private static void differentSubscriptions(Bench bench) throws Exception {
        String apples = bench.topic(2);
        String pears = bench.topic(2);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member both = bench.later(new Member(
            bench.consumer("group.id", group), ledger, List.of(apples, pears)));
        Member onlyPears = bench.member(ledger, group, pears);
        Bench.until("both are in", Bench.SOON, () -> onlyPears.owned.size() == 1 && both.owned.size() == 3);
        Bench.demand(onlyPears.owned.iterator().next().topic().equals(pears), "assigned what it never asked for");
        ledger.demandNoOverlap();
    }

    private static void memberKilled(Bench bench) throws Exception {
        String topic = bench.topic(4);
        String group = bench.name();
        Member here = bench.member(new Ledger(), group, topic);
        Process there = Worker.start(bench, "member", group, topic);
        settledAt(2, here);
        there.destroyForcibly().waitFor();
        long begun = System.nanoTime();
        settledAt(4, here);
        double seconds = (System.nanoTime() - begun) / 1e9;
        Bench.demand(seconds > 4.5, "its session of 6 s ended after " + seconds + " s");
    }

    private static void settledAt(int count, Member member) throws Exception {
        Bench.until("it owns " + count, Bench.SOON, () -> member.owned.size() == count);
    }

    private static void enforcedRebalance(Bench bench) throws Exception {
        String topic = bench.topic(2);
        Member member = bench.member(new Ledger(), bench.name(), topic);
        settled(2, member);
        int before = member.generation();
        member.ask(it -> {
            it.enforceRebalance("the check wants it");
            return null;
        });
        Bench.until("a generation later", Bench.SOON, () -> member.generation() > before);
        settled(2, member);
    }

    private static void eagerRevokesAll(Bench bench) throws Exception {
        String topic = bench.topic(4);
        String group = bench.name();
        Ledger ledger = new Ledger();
        Member one = bench.member(ledger, group, topic, ASSIGNOR, RANGE);
        settled(4, one);
        Member two = bench.member(ledger, group, topic, ASSIGNOR, RANGE);
        settled(4, one, two);
        Bench.demand(one.told.contains("revoked 4"), "it gave back less than all: " + one.told);
        ledger.demandNoOverlap();
    }
}
