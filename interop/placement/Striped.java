// Writes what Apache Kafka's own StripedReplicaPlacer answers, a case a line: the vectors in
// tests/data/placements.jsonl. Run it with Kafka's jars, as tests/data/README.md says.

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.Collectors;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.metadata.placement.ClusterDescriber;
import org.apache.kafka.metadata.placement.PlacementSpec;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.metadata.placement.UsableBroker;

public class Striped {
    record Cluster(List<UsableBroker> brokers) implements ClusterDescriber {
        public Iterator<UsableBroker> usableBrokers() {
            return brokers.iterator();
        }

        public Uuid defaultDir(int broker) {
            return Uuid.ZERO_UUID;
        }
    }

    public static void main(String[] words) {
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            System.out.println(answered(number));
        }
    }

    /** Returns a case drawn from its number, with what the placer answers to it. */
    static String answered(int number) {
        Random drawn = new Random(number);
        List<UsableBroker> brokers = brokers(drawn);
        int factor = 1 + drawn.nextInt(brokers.size());
        int partitions = 1 + drawn.nextInt(24);
        PlacementSpec spec = new PlacementSpec(0, partitions, (short) factor);
        String layout = new StripedReplicaPlacer(new Random(number)).place(spec, new Cluster(brokers))
            .assignments().stream().map(one -> one.replicas().toString()).collect(Collectors.joining(", "));
        return "{\"seed\": " + number + ", \"brokers\": [" + brokers.stream().map(Striped::text)
            .collect(Collectors.joining(", ")) + "], \"factor\": " + factor + ", \"layout\": [" + layout + "]}";
    }

    /** Returns up to nine brokers in up to five racks, or none; broker 0 is never fenced. */
    static List<UsableBroker> brokers(Random drawn) {
        List<UsableBroker> brokers = new ArrayList<>();
        int racks = drawn.nextInt(6);
        int count = 1 + drawn.nextInt(9);
        for (int id = 0; id < count; id++) {
            // One letter each: Kafka draws the racks' starts in the order of a HashMap, which for these is theirs.
            String rack = racks == 0 || drawn.nextInt(8) == 0 ? null : "" + (char) ('a' + drawn.nextInt(racks));
            brokers.add(new UsableBroker(id, Optional.ofNullable(rack), id > 0 && drawn.nextInt(4) == 0));
        }
        return brokers;
    }

    static String text(UsableBroker broker) {
        String rack = broker.rack().map(name -> "\"" + name + "\"").orElse("null");
        return "[" + broker.id() + ", " + rack + ", " + broker.fenced() + "]";
    }
}
