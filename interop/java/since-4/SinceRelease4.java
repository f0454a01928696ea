import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.common.ClassicGroupState;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.errors.GroupIdNotFoundException;

/** Calls that the client of release 3.9 does not have. */
final class SinceRelease4 {
    static List<Check> checks() {
        return List.of(
            new Check("admin-list-groups", SinceRelease4::listGroups),
            new Check("admin-describe-classic-groups", SinceRelease4::describeClassic),
            new Check("admin-describe-unknown-group", SinceRelease4::describeUnknown),
            new Check("admin-list-transactions-by-pattern", SinceRelease4::byPattern));
    }

    private static Map<String, GroupListing> listed(Bench bench, ListGroupsOptions options) throws Exception {
        return bench.admin().listGroups(options).all().get().stream()
            .collect(Collectors.toMap(GroupListing::groupId, listing -> listing));
    }

    private static void listGroups(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String idle = AdminGroups.idle(bench, topic, 1);
        String active = bench.name();
        Groups.settled(1, bench.member(new Ledger(), active, topic));
        GroupListing listing = listed(bench, new ListGroupsOptions()).get(active);
        Bench.same("consumer", listing.protocol(), "protocol type");
        Bench.same(GroupType.CLASSIC, listing.type().get(), "type");
        Set<String> consumers = listed(bench, new ListGroupsOptions().withProtocolTypes(Set.of("consumer"))).keySet();
        Bench.demand(consumers.contains(active) && !consumers.contains(idle), "by protocol type");
        Set<String> simple = listed(bench, new ListGroupsOptions().withProtocolTypes(Set.of(""))).keySet();
        Bench.demand(simple.contains(idle) && !simple.contains(active), "without a protocol type");
        Set<String> empty = listed(bench, new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))).keySet();
        Bench.demand(empty.contains(idle) && !empty.contains(active), "by state");
        Set<String> shared = listed(bench, new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE))).keySet();
        Bench.demand(!shared.contains(active), "by type");
    }

    private static void describeClassic(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Groups.settled(2, bench.member(new Ledger(), group, topic));
        ClassicGroupDescription found =
            bench.admin().describeClassicGroups(List.of(group)).all().get().get(group);
        Bench.same("consumer", found.protocol(), "protocol type");
        Bench.same("range", found.protocolData(), "protocol");
        Bench.same(ClassicGroupState.STABLE, found.state(), "state");
        Bench.same(1, found.members().size(), "members");
    }

    private static void describeUnknown(Bench bench) throws Exception {
        Bench.refused(() -> bench.admin().describeConsumerGroups(List.of(bench.name())).all().get(),
            GroupIdNotFoundException.class);
    }

    private static void byPattern(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String id = bench.name();
        var producer = Transactions.transactional(bench, id);
        producer.beginTransaction();
        Transactions.send(producer, topic, 0, 0, 1);
        Set<String> found = bench.admin().listTransactions(new ListTransactionsOptions()
            .filterOnTransactionalIdPattern(id.replace("transactions", ".*"))).all().get().stream()
            .map(TransactionListing::transactionalId).collect(Collectors.toSet());
        Bench.same(Set.of(id), found, "by pattern");
        producer.abortTransaction();
    }
}
