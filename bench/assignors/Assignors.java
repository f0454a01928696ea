import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own assignors over lines of `coterie assign`: the lines with each step's assignment filled in, or, with a
 * number of repetitions as the argument, the milliseconds that each step took in each of them.
 */
public final class Assignors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Supplier<ConsumerPartitionAssignor>> KINDS = Map.of(
        "range", RangeAssignor::new,
        "roundrobin", RoundRobinAssignor::new,
        "sticky", StickyAssignor::new,
        "cooperative-sticky", CooperativeStickyAssignor::new);

    public static void main(String[] words) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode given = (ObjectNode) JSON.readTree(line);
            Scenario scenario = new Scenario(given);
            System.out.println(words.length == 0 ? answered(scenario) : timed(scenario, Integer.parseInt(words[0])));
        }
    }

    private static String answered(Scenario scenario) throws Exception {
        for (JsonNode step : scenario.given.get("steps")) {
            try {
                ((ObjectNode) step).set("assignment", scenario.shown(scenario.assigned((ObjectNode) step)));
            } catch (RuntimeException failure) {
                ((ObjectNode) step).put("failure", failure.toString());
            }
        }
        return JSON.writeValueAsString(scenario.given);
    }

    private static String timed(Scenario scenario, int repetitions) throws Exception {
        List<List<Double>> all = new ArrayList<>();
        for (int repetition = 0; repetition < repetitions; repetition++) {
            List<Double> milliseconds = new ArrayList<>();
            for (JsonNode step : scenario.given.get("steps")) {
                GroupSubscription members = scenario.members((ObjectNode) step);
                ConsumerPartitionAssignor assignor = KINDS.get(scenario.assignor).get();
                System.gc();
                long before = System.nanoTime();
                scenario.last = assignor.assign(scenario.cluster, members).groupAssignment();
                milliseconds.add((System.nanoTime() - before) / 1e6);
            }
            all.add(milliseconds);
            scenario.last = Map.of();
        }
        return JSON.writeValueAsString(all);
    }

    private static final class Scenario {
        final ObjectNode given;
        final String assignor;
        final Cluster cluster;
        Map<String, ConsumerPartitionAssignor.Assignment> last = Map.of();

        Scenario(ObjectNode given) {
            this.given = given;
            this.assignor = given.get("assignor").asText();
            this.cluster = cluster(given);
        }

        private static Cluster cluster(JsonNode given) {
            JsonNode racks = given.path("broker_racks");
            List<Node> nodes = new ArrayList<>();
            for (int id = 0; id < Math.max(racks.size(), 3); id++)
                nodes.add(new Node(id, "broker" + id, 9092, racks.isArray() ? racks.get(id).asText(null) : null));
            List<PartitionInfo> partitions = new ArrayList<>();
            given.get("partitions").properties().forEach(topic -> {
                for (int number = 0; number < topic.getValue().asInt(); number++) {
                    JsonNode brokers = given.path("replicas").path(topic.getKey()).path(number);
                    Node[] replicas = new Node[brokers.isArray() ? brokers.size() : 1];
                    for (int at = 0; at < replicas.length; at++)
                        replicas[at] = nodes.get(brokers.isArray() ? brokers.get(at).asInt() : 0);
                    partitions.add(new PartitionInfo(
                        topic.getKey(), number, replicas.length == 0 ? null : replicas[0], replicas, replicas));
                }
            });
            return new Cluster("cluster", nodes, partitions, new HashSet<>(), new HashSet<>());
        }

        Map<String, ConsumerPartitionAssignor.Assignment> assigned(ObjectNode step) {
            GroupSubscription members = members(step);
            if (!step.has("owned")) {
                ObjectNode owned = step.putObject("owned");
                members.groupSubscription().forEach((member, ignored) ->
                    owned.set(member, pairs(last.containsKey(member) ? last.get(member).partitions() : List.of())));
            }
            last = KINDS.get(assignor).get().assign(cluster, members).groupAssignment();
            return last;
        }

        /** The members as the leader sees them; what they own is the step's, or else what the last step gave them. */
        GroupSubscription members(ObjectNode step) {
            Map<String, Subscription> members = new HashMap<>();
            step.get("members").forEach(name -> {
                String member = name.asText();
                List<String> topics = new ArrayList<>();
                given.get("subscriptions").get(member).forEach(topic -> topics.add(topic.asText()));
                List<TopicPartition> owned = new ArrayList<>();
                step.path("owned").path(member).forEach(each ->
                    owned.add(new TopicPartition(each.get(0).asText(), each.get(1).asInt())));
                if (!step.has("owned") && last.containsKey(member))
                    owned.addAll(last.get(member).partitions());
                JsonNode number = step.path("generation");
                int generation = number.isObject() ? number.path(member).asInt(-1) : number.asInt(1);
                Subscription one = subscription(topics, owned, generation, given.path("racks").path(member).asText(null));
                if (given.path("instances").has(member))
                    one.setGroupInstanceId(Optional.of(given.get("instances").get(member).asText()));
                members.put(member, one);
            });
            return new GroupSubscription(members);
        }

        private Subscription subscription(
            List<String> topics, List<TopicPartition> owned, int generation, String rack
        ) {
            boolean sticky = assignor.equals("sticky");
            return new Subscription(
                topics,
                sticky ? userData(owned, generation) : null,
                assignor.equals("cooperative-sticky") ? owned : List.of(),
                generation,
                Optional.ofNullable(rack));
        }

        /** What a sticky member sends: what it had, by topic, and the generation it had it in. */
        private static ByteBuffer userData(List<TopicPartition> owned, int generation) {
            Map<String, List<Integer>> byTopic = new LinkedHashMap<>();
            owned.forEach(each -> byTopic.computeIfAbsent(each.topic(), name -> new ArrayList<>()).add(each.partition()));
            int size = 8;
            for (Map.Entry<String, List<Integer>> topic : byTopic.entrySet())
                size += 2 + topic.getKey().getBytes(StandardCharsets.UTF_8).length + 4 + 4 * topic.getValue().size();
            ByteBuffer data = ByteBuffer.allocate(size);
            data.putInt(byTopic.size());
            byTopic.forEach((topic, numbers) -> {
                byte[] name = topic.getBytes(StandardCharsets.UTF_8);
                data.putShort((short) name.length).put(name).putInt(numbers.size());
                numbers.forEach(data::putInt);
            });
            return data.putInt(generation).flip();
        }

        private ObjectNode shown(Map<String, ConsumerPartitionAssignor.Assignment> assignment) {
            ObjectNode shown = JSON.createObjectNode();
            new TreeMap<>(assignment).forEach((member, one) -> shown.set(member, pairs(one.partitions())));
            return shown;
        }

        private static ArrayNode pairs(List<TopicPartition> partitions) {
            ArrayNode pairs = JSON.createArrayNode();
            partitions.stream()
                .sorted(Comparator.comparing(TopicPartition::topic).thenComparingInt(TopicPartition::partition))
                .forEach(each -> pairs.addArray().add(each.topic()).add(each.partition()));
            return pairs;
        }
    }
}
