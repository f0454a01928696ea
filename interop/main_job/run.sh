#!/bin/bash
# The main job on three brokers over PostgreSQL; installs Debian's PostgreSQL if there is none.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.main_job
