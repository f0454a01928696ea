import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListConsumerGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ConsumerGroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What the Admin client says of groups and does to them. */
@SuppressWarnings("deprecation") // newer clients call the same by other names; SinceRelease4 has those
final class AdminGroups {
    static List<Check> checks() {
        return List.of(
            new Check("admin-list-consumer-groups", AdminGroups::list),
            new Check("admin-describe-consumer-groups", AdminGroups::describe),
            new Check("admin-describe-static-member", AdminGroups::describeStatic),
            new Check("admin-describe-authorized-operations", AdminGroups::authorizedOperations),
            new Check("admin-list-offsets-of-several-groups", AdminGroups::listOffsets),
            new Check("admin-list-stable-offsets", AdminGroups::listStableOffsets),
            new Check("admin-alter-offsets", AdminGroups::alterOffsets),
            new Check("admin-delete-offsets", AdminGroups::deleteOffsets),
            new Check("admin-remove-members", AdminGroups::removeMembers),
            new Check("admin-remove-all-members", AdminGroups::removeAllMembers),
            new Check("admin-delete-groups", AdminGroups::deleteGroups));
    }

    /** Returns a group that has committed this offset for partition 0 of a topic, and has no members. */
    static String idle(Bench bench, String topic, long offset) {
        String group = bench.name();
        KafkaConsumer<String, String> consumer = bench.consumer("group.id", group);
        TopicPartition partition = new TopicPartition(topic, 0);
        consumer.assign(List.of(partition));
        consumer.commitSync(Map.of(partition, new OffsetAndMetadata(offset)));
        return group;
    }

    private static String active(Bench bench, String topic, String... settings) throws Exception {
        String group = bench.name();
        Member member = bench.member(new Ledger(), group, topic, settings);
        Bench.until("the group has a member", Bench.SOON, () -> !member.owned.isEmpty());
        return group;
    }

    private static Set<String> listed(Bench bench, ListConsumerGroupsOptions options) throws Exception {
        return bench.admin().listConsumerGroups(options).all().get().stream()
            .map(ConsumerGroupListing::groupId).collect(Collectors.toSet());
    }

    private static void list(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String idle = idle(bench, topic, 1);
        String active = active(bench, topic);
        Set<String> all = listed(bench, new ListConsumerGroupsOptions());
        Bench.demand(all.containsAll(Set.of(idle, active)), "both are listed: " + all);
        ListConsumerGroupsOptions stable = new ListConsumerGroupsOptions().inStates(Set.of(ConsumerGroupState.STABLE));
        Bench.until("it is stable", Bench.SOON, () -> listed(bench, stable).contains(active));
        Bench.demand(!listed(bench, stable).contains(idle), "the idle one is not stable");
        Set<String> empty = listed(bench, new ListConsumerGroupsOptions().inStates(Set.of(ConsumerGroupState.EMPTY)));
        Bench.demand(empty.contains(idle) && !empty.contains(active), "only the idle one is empty");
        ConsumerGroupListing listing = bench.admin().listConsumerGroups().all().get().stream()
            .filter(one -> one.groupId().equals(idle)).findFirst().orElseThrow();
        Bench.demand(listing.isSimpleConsumerGroup(), "a group of commits alone is a simple one");
    }

    private static void describe(Bench bench) throws Exception {
        String topic = bench.topic(3);
        String group = active(bench, topic, "client.id", "client-of-" + topic);
        String idle = idle(bench, topic, 1);
        Bench.until("it is stable", Bench.SOON, () -> Groups.stable(bench, group, 1));
        Map<String, ConsumerGroupDescription> all =
            bench.admin().describeConsumerGroups(List.of(group, idle)).all().get();
        ConsumerGroupDescription found = all.get(group);
        Bench.same("range", found.partitionAssignor(), "assignor");
        Bench.demand(found.coordinator().port() > 0, "coordinator " + found.coordinator());
        MemberDescription member = found.members().iterator().next();
        Bench.same("client-of-" + topic, member.clientId(), "client id");
        Bench.demand(member.consumerId().startsWith("client-of-" + topic + "-"), "member id " + member.consumerId());
        Bench.same("/127.0.0.1", member.host(), "host");
        Bench.same(3, member.assignment().topicPartitions().size(), "partitions");
        Bench.same(ConsumerGroupState.EMPTY, all.get(idle).state(), "the idle one's state");
    }

    private static void describeStatic(Bench bench) throws Exception {
        String group = active(bench, bench.topic(1), "group.instance.id", "fixed");
        MemberDescription member = bench.admin().describeConsumerGroups(List.of(group)).all().get().get(group)
            .members().iterator().next();
        Bench.same(Optional.of("fixed"), member.groupInstanceId(), "instance id");
    }

    private static void authorizedOperations(Bench bench) throws Exception {
        String group = idle(bench, bench.topic(1), 1);
        Set<AclOperation> operations = bench.admin().describeConsumerGroups(List.of(group),
            new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).all().get().get(group)
            .authorizedOperations();
        Bench.demand(operations.containsAll(Set.of(AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE)),
            "operations: " + operations);
    }

    private static void listOffsets(Bench bench) throws Exception {
        String topic = bench.topic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        String one = idle(bench, topic, 10);
        String two = idle(bench, topic, 20);
        String nobody = bench.name();
        Map<String, ListConsumerGroupOffsetsSpec> asked = new HashMap<>();
        asked.put(one, new ListConsumerGroupOffsetsSpec());
        asked.put(two, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(first, second)));
        asked.put(nobody, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(first)));
        var found = bench.admin().listConsumerGroupOffsets(asked).all().get();
        Bench.same(Map.of(first, new OffsetAndMetadata(10)), found.get(one), "all offsets of the first");
        Bench.same(20L, found.get(two).get(first).offset(), "of the second");
        Bench.demand(found.get(two).get(second) == null, "nothing committed there: " + found.get(two));
        Bench.demand(found.get(nobody).get(first) == null, "nobody's: " + found.get(nobody));
    }

    private static void listStableOffsets(Bench bench) throws Exception {
        String topic = bench.topic(1);
        String group = idle(bench, topic, 10);
        var found = bench.admin().listConsumerGroupOffsets(group,
            new ListConsumerGroupOffsetsOptions().requireStable(true)).partitionsToOffsetAndMetadata().get();
        Bench.same(10L, found.get(new TopicPartition(topic, 0)).offset(), "offset");
    }

    private static void alterOffsets(Bench bench) throws Exception {
        String topic = bench.topic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        TopicPartition nowhere = new TopicPartition(topic, 7);
        Admin admin = bench.admin();
        String group = idle(bench, topic, 10);
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(3, "by hand"),
            second, new OffsetAndMetadata(4))).all().get();
        var found = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Bench.same(new OffsetAndMetadata(3, "by hand"), found.get(first), "altered");
        Bench.same(4L, found.get(second).offset(), "added");
        var mixed = admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(5),
            nowhere, new OffsetAndMetadata(5)));
        mixed.partitionResult(first).get();
        Bench.refused(() -> mixed.partitionResult(nowhere).get(), UnknownTopicOrPartitionException.class);
        String active = active(bench, topic);
        Bench.refused(() -> admin.alterConsumerGroupOffsets(active, Map.of(first, new OffsetAndMetadata(5))).all().get(),
            UnknownMemberIdException.class);
    }

    private static void deleteOffsets(Bench bench) throws Exception {
        String topic = bench.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        Admin admin = bench.admin();
        String group = idle(bench, topic, 10);
        admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
        Bench.demand(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().isEmpty(), "deleted");
        String active = active(bench, topic);
        Bench.refused(() -> admin.deleteConsumerGroupOffsets(active, Set.of(partition)).all().get(),
            GroupSubscribedToTopicException.class);
        Bench.refused(() -> admin.deleteConsumerGroupOffsets(bench.name(), Set.of(partition)).all().get(),
            GroupIdNotFoundException.class);
    }

    private static void removeMembers(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        String[] quiet = {"session.timeout.ms", "60000", "group.instance.id", ""};
        Member stays = bench.member(new Ledger(), group, topic, named(quiet, "stays"));
        Member goes = bench.member(new Ledger(), group, topic, named(quiet, "goes"));
        Groups.settled(2, stays, goes);
        goes.close(); // its instance stays in the group for its session
        bench.admin().removeMembersFromConsumerGroup(group,
            new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("goes")))).all().get();
        Bench.until("the other has it all", Bench.SOON, () -> stays.owned.size() == 2);
        MemberToRemove nobody = new MemberToRemove("nobody");
        Bench.refused(() -> bench.admin().removeMembersFromConsumerGroup(group,
            new RemoveMembersFromConsumerGroupOptions(List.of(nobody))).memberResult(nobody).get(),
            UnknownMemberIdException.class);
    }

    private static String[] named(String[] settings, String instance) {
        String[] all = settings.clone();
        all[all.length - 1] = instance;
        return all;
    }

    private static void removeAllMembers(Bench bench) throws Exception {
        String topic = bench.topic(2);
        String group = bench.name();
        Member fixed = bench.member(new Ledger(), group, topic, "group.instance.id", "fixed");
        Member moving = bench.member(new Ledger(), group, topic);
        Groups.settled(2, fixed, moving);
        RemoveMembersFromConsumerGroupOptions all = new RemoveMembersFromConsumerGroupOptions();
        all.reason("the check wants it");
        bench.admin().removeMembersFromConsumerGroup(group, all).all().get();
        Bench.until("the dynamic one joins anew", Bench.SOON, () -> moving.told.stream().anyMatch(
            word -> word.startsWith("lost")) && !moving.owned.isEmpty());
    }

    private static void deleteGroups(Bench bench) throws Exception {
        String topic = bench.topic(1);
        Admin admin = bench.admin();
        String idle = idle(bench, topic, 1);
        String active = active(bench, topic);
        String nobody = bench.name();
        var deleted = admin.deleteConsumerGroups(List.of(idle, active, nobody)).deletedGroups();
        deleted.get(idle).get();
        Bench.refused(() -> deleted.get(active).get(), GroupNotEmptyException.class);
        Bench.refused(() -> deleted.get(nobody).get(), GroupIdNotFoundException.class);
        Collection<String> left = listed(bench, new ListConsumerGroupsOptions());
        Bench.demand(!left.contains(idle) && left.contains(active), "left: " + left);
    }
}
