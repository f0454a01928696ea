"""A checkpoint of a query without a group, of Spark's own source or of ours, is taken along into a group."""

from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.member.runner import Membership
from coterie.client.net.cluster import Cluster
from coterie.spark.source.offsets import DataLoss, GroupDocument
from coterie.spark.source.options import SourceOptions
from coterie.spark.source.topics import end_offsets, existing_partitions


class CheckpointAdoption:
    """Has the group begin where such a checkpoint stands, before the member reads anything.

    That is committed for each partition that the group has no offset of, another member's too: from then on
    whoever gets the partition knows what the checkpoint knows, and so does the next process of this query.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster, self._options = cluster, options
        self._done = False

    async def is_done(self, membership: Membership, document: GroupDocument) -> bool:
        """Return whether the group knows where the query of a document stands: at once if the document is a
        member's; False where the membership moves, and this has to be asked again. Raises `DataLoss`.
        """
        if self._done or not document.is_without_group:
            return True
        if not membership.member.ready:
            return False
        generation = membership.generation
        fresh = await self._fresh(document)
        if membership.generation != generation:
            return False
        if not fresh:
            self._done = True
        else:
            code = await membership.commit({one: OffsetAndMetadata(at) for one, at in fresh.items()})
            self._done = not code
        return self._done

    async def _fresh(self, document: GroupDocument) -> dict[TopicPartition, int]:
        """Return the offsets of the checkpoint that the group has none for, of partitions that there are."""
        member = self._options.member
        assert member is not None
        existing = await existing_partitions(self._cluster, self._options.selection)
        known = {one: at for one in existing if (at := document.positions.get(one)) is not None}
        committed = await self._cluster.committed_notes(member.group_id, known)
        fresh = {one: at for one, at in known.items() if committed.get(one) is None}
        ends = await end_offsets(self._cluster, fresh, isolation=0)
        past = sorted(one for one, at in fresh.items() if at > ends[one])
        if past and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{past[0]}: the checkpoint says offset {fresh[past[0]]}, and the partition ends at"
                f" {ends[past[0]]}; was the topic made anew? Start with a new checkpoint;"
                " with failOnDataLoss=false it is read from its beginning"
            )
        return {one: 0 if one in past else at for one, at in fresh.items()}
