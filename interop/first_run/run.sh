#!/bin/bash
# What the README tells a newcomer to run, on a bare Debian 12 (debootstrap's minbase with make and Python, no Java, no
# ps), as root and as a user, in a path with a space. CHECKS is a pattern for the names. Root only: it uses chroot.
set -u

BARE=$CACHE/debian-12
HOME_OF_USER=/home/newcomer
PLACE="my kafka/coterie"
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

if [ "$(id -u)" != 0 ]; then
    echo "skipped first_run: only root can make a Debian of its own"
    exit 0
fi

missing=""
command -v debootstrap >/dev/null || missing=debootstrap
if [ -n "$missing" ]; then
    { apt-get update && apt-get install -y --no-install-recommends debootstrap; } >&2 || exit 1
fi

if [ ! -e "$BARE/.complete" ]; then
    rm -rf "$BARE"
    debootstrap --variant=minbase --include=make,python3,python3-venv,ca-certificates bookworm "$BARE" >&2 || exit 1
    chroot "$BARE" useradd --create-home newcomer || exit 1
    touch "$BARE/.complete"
fi
debian=$WORK/debian
cp -a "$BARE" "$debian" || exit 1
cp /etc/resolv.conf "$debian/etc/resolv.conf"
# Every Debian knows this name; debootstrap leaves it to who installs.
echo '127.0.0.1 localhost' >"$debian/etc/hosts"
# What lets this machine reach its package index lets the bare one, too.
cp -L "$CERTIFICATES" "$debian$CERTIFICATES"
[ -f /etc/pip.conf ] && cp /etc/pip.conf "$debian/etc/pip.conf"

# inside USER COMMAND: in the bare Debian, with nothing of this machine's environment; what it starts ends with it.
inside() {
    local user=$1 home=$HOME_OF_USER
    [ "$user" = root ] && home=/root
    unshare --mount --pid --fork --kill-child bash -c '
        mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm" &&
            mount --bind /dev/pts "$1/dev/pts"
        exec chroot --userspec="$2" "$1" /usr/bin/env -i HOME="$3" USER="$2" LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin \
            PIP_CERT="$5" SSL_CERT_FILE="$5" sh -c "$4"
    ' inside "$debian" "$user" "$home" "$2" "$CERTIFICATES"
}

# try NAME USER COMMAND: is `ok` if the command, in the checkout, ends well; else its last lines are shown.
try() {
    local name=$1 user=$2 command=$3 home=$HOME_OF_USER log=$WORK/$1.log begun=$SECONDS
    if [ -n "${CHECKS:-}" ] && ! grep -qE -- "$CHECKS" <<<"$name"; then return; fi
    [ "$user" = root ] && home=/root
    if inside "$user" "cd '$home/$PLACE' && $command" >"$log" 2>&1; then
        echo "ok $name"
    else
        echo "FAILED $name: $(tail -n 1 "$log")"
        tail -n 40 "$log" | sed 's/^/    /'
    fi
    echo "$name took $((SECONDS - begun)) s"
}

for user in root newcomer; do
    home=$HOME_OF_USER
    [ "$user" = root ] && home=/root
    mkdir -p "$debian$home/${PLACE%/*}"
    git -c advice.detachedHead=false clone --quiet --no-hardlinks "file://$(git -C "$REPOSITORY" rev-parse --path-format=absolute --git-common-dir)" "$debian$home/$PLACE" || exit 1
    git -C "$debian$home/$PLACE" checkout --quiet "$(git -C "$REPOSITORY" rev-parse HEAD)" || exit 1
    [ "$user" = root ] || chroot "$debian" chown -R newcomer: "$home"
    try "setup-$user" "$user" "make setup"
    try "setup-again-$user" "$user" "make setup | tee ~/again && ! grep -q loaded ~/again"
    try "serve-$user" "$user" ". .venv/bin/activate && python -c \"
import coterie.testing as testing
with testing.broker() as kafka:
    print('ready', kafka.bootstrap)
\""
    try "run-$user" "$user" "make run EVENTS=20000"
    try "test-$user" "$user" "make test"
    rm -rf "${debian:?}$home/${PLACE%/*}" "$debian$home/.cache"
done
