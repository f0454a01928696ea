"""The measured claims: Coterie beside Apache Kafka 4.3.1, on one machine, in one run.

`python -m bench` measures everything and writes `docs/bench.md`; `python -m bench heartbeats` one claim.
"""
