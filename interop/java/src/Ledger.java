import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;

/** Who owns which partition at each moment, as the listeners of a group's members say; two owners are noted. */
final class Ledger {
    private final Map<TopicPartition, Object> owners = new HashMap<>();
    private String overlap = "";

    synchronized void claim(Object member, Collection<TopicPartition> partitions) {
        for (TopicPartition partition : partitions) {
            Object before = owners.put(partition, member);
            if (before != null && before != member) {
                overlap = partition + " went to " + member + " while " + before + " owned it";
            }
        }
    }

    synchronized void release(Object member, Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owners.remove(partition, member));
    }

    synchronized void demandNoOverlap() {
        Bench.demand(overlap.isEmpty(), overlap);
    }

    synchronized int owned() {
        return owners.size();
    }
}
