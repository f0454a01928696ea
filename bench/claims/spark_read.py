"""Claims: Spark reads a topic by our source faster than by its own connector, plain, compressed, to Parquet.

One Spark application (local[2], Unix sockets to its Python workers) reads the same topic by our source, by
Spark's with its defaults, and by Spark's tuned, in turn; what nobody counts comes first. Both columns of the
table are the other's time divided by ours, from either broker.
"""

from __future__ import annotations

from bench.figures import Figure, Plan
from bench.spark.running import DEFAULTS, TOPIC, TUNED, Contest, at_least, held
from bench.spark.topics import MIXED

__all__ = ["codecs", "parquet", "read"]

CODECS = ("lz4", "zstd", "snappy", "gzip")
JOBS = {"lengths": "sum of lengths", "noop": "key and value to noop"}
NAMED = {"lengths": "value", "noop": "key,value"}
"""What each job needs: Spark tells a Python source nothing of it, so the option `columns` can."""
RICH = {"includeHeaders": "true"}
CODEC_ROUNDS = 3
"""There are four topics of them, and the goal is far off."""


def read(plan: Plan) -> list[Figure]:
    """Return how much faster 4.5 million records are read than by Spark's connector, tuned and not."""
    goals = {DEFAULTS: at_least(3.0), TUNED: at_least(1.8)}
    contests = [Contest("spark-read", f"batch, {what}", job, goals) for job, what in JOBS.items()]
    contests += [
        Contest("spark-read", f"batch, {what}, columns={NAMED[job]}", job, goals, {"columns": NAMED[job]})
        for job, what in JOBS.items()
    ]
    return held(plan, {TOPIC: MIXED}, contests)


def codecs(plan: Plan) -> list[Figure]:
    """Return the same of records with keys and headers, by codec, beside Spark's defaults."""
    topics = {codec: MIXED._replace(codec=codec, rich=True) for codec in CODECS}
    contests = [rich(codec, job) for codec in CODECS for job in JOBS]
    return held(plan, topics, contests, rounds=CODEC_ROUNDS)


def rich(codec: str, job: str) -> Contest:
    """Return the contest on the topic of a codec."""
    what = f"batch, keys and headers, {codec}, {JOBS[job]}"
    return Contest("spark-codecs", what, job, {DEFAULTS: at_least(1.5)}, RICH, topic=codec)


def parquet(plan: Plan) -> list[Figure]:
    """Return how much faster a topic becomes Parquet."""
    contest = Contest("spark-parquet", "batch, to Parquet", "parquet", {TUNED: at_least(1.2)})
    return held(plan, {TOPIC: MIXED}, [contest])
