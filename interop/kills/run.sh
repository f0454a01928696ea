#!/bin/bash
# 200 times kill -9 at random moments under load from librdkafka's clients; the seed is printed.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.kills --kills "${KILLS:-200}"
