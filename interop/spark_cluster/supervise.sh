#!/bin/sh
# supervise.sh COMMAND ...: starts a command again until it ends well, as systemd or a Deployment would.
until "$@"; do
    echo "supervise: it has ended with $?, and is started again" >&2
    sleep 1
done
