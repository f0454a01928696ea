# What the suites share: running one of Kafka's tools, and checking what it printed.
# Sourced by each run.sh; $BOOTSTRAP, $JAVA, $KAFKA_CLASSPATH, $WORK and $RUN come from `python -m interop`.

TOOL_SECONDS=${TOOL_SECONDS:-90}
ARCHIVE=$WORK/../tools.jsa # the classes of the tools as Java had them in memory: nearly half of a tool's second

archive() {
    "$JAVA" -XX:ArchiveClassesAtExit="$ARCHIVE" -Dorg.slf4j.simpleLogger.defaultLogLevel=off -cp "$KAFKA_CLASSPATH" \
        org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$BOOTSTRAP" --list \
        >/dev/null 2>&1
    [ -f "$ARCHIVE" ] || : >"$ARCHIVE" # this Java keeps none, and is not asked again
}

# tool CLASS [ARGUMENT ...]: runs a tool of Kafka's distribution; org.apache.kafka.tools unless CLASS has a dot.
tool() {
    local class=$1
    shift
    case $class in
        kafka.*) ;;
        *) class=org.apache.kafka.tools.$class ;;
    esac
    [ -e "$ARCHIVE" ] || archive
    # One compiler tier: tools live for a second. In the foreground: who ends the suite ends its tools.
    timeout --foreground "$TOOL_SECONDS" "$JAVA" -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
        -XX:SharedArchiveFile="$ARCHIVE" -Xshare:auto -Xlog:disable -Xlog:all=off \
        -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$KAFKA_CLASSPATH" "$class" "$@" 2>&1
}

topics() { tool TopicCommand --bootstrap-server "$BOOTSTRAP" "$@"; }
configs() { tool kafka.admin.ConfigCommand --bootstrap-server "$BOOTSTRAP" "$@"; }
groups() { tool consumer.group.ConsumerGroupCommand --bootstrap-server "$BOOTSTRAP" "$@"; }
offsets() { tool GetOffsetShell --bootstrap-server "$BOOTSTRAP" "$@"; }
console_producer() { tool ConsoleProducer --bootstrap-server "$BOOTSTRAP" "$@"; }
console_consumer() { tool consumer.ConsoleConsumer --bootstrap-server "$BOOTSTRAP" "$@"; }

# check NAME PATTERN COMMAND [ARGUMENT ...]: passes if the command ends well and a line it printed matches.
check() { expect 0 "$@"; }

# refused NAME PATTERN COMMAND ...: passes if the command ends in failure and a line it printed matches.
refused() { expect 1 "$@"; }

expect() {
    local wanted=$1 name=$2 pattern=$3 said code
    shift 3
    said=$("$@")
    code=$?
    [ "$code" = 0 ] || code=1
    if [ "$code" = "$wanted" ] && grep -qE -- "$pattern" <<<"$said"; then
        echo "ok $name"
    else
        echo "FAILED $name: exit code $code, wanted /$pattern/ in"
        sed 's/^/    /' <<<"$said" | cut -c 1-200 | tail -n 12
    fi
}

# eventually SECONDS COMMAND ...: repeats a command until it succeeds or the time is over.
eventually() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -ge "$end" ] && return 1
        sleep 0.3
    done
}

# java_client VERSION: the class path of that release of Kafka's Java client, fetched with a compiler the first time.
java_client() {
    "$PYTHON" -c "import sys; from pathlib import Path; from bench.kafka import fetched
print(fetched(Path(sys.argv[1]), Path(sys.argv[2]), '-Dkafka.version=$1', what='kafka-clients $1'))" \
        "$REPOSITORY/interop/java/pom.xml" "$CACHE/java-$1/libs"
}

# java_compile VERSION INTO SOURCE ...: Eclipse's compiler runs on any Java; a machine that runs programs need not have
# javac.
java_compile() {
    local libs=$CACHE/java-$1/libs version=$1 into=$2
    shift 2
    rm -rf "$into"
    "$JAVA" -jar "$libs"/ecj-*.jar -17 -proc:none -nowarn -cp "$libs/kafka-clients-$version.jar" -d "$into" "$@"
}
