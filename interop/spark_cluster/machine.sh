#!/bin/sh
# machine.sh NAME ROOT FOLDER HOSTS [FROM=TO ...]: what runs as the first process of a machine's namespaces. Its files
# are the system's programs, read-only, the folders that are named, read-only as well, and FOLDER as /var, its disk.
set -eu
name=$1 root=$2 own=$3 hosts=$4
shift 4

mount --make-rprivate /
mount -t tmpfs -o size=16m,mode=755 machine "$root"
for one in bin lib lib64 sbin; do
    if [ -h "/$one" ]; then cp -P "/$one" "$root/$one"; fi
done

see() { # see FROM TO
    if [ -d "$1" ]; then
        mkdir -p "$root$2"
    else
        mkdir -p "$root${2%/*}"
        : >"$root$2"
    fi
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
}

see /usr /usr
see /etc /etc
mount --bind "$hosts" "$root/etc/hosts"
for one; do
    see "${one%%=*}" "${one#*=}"
done
mkdir -p "$root/proc" "$root/dev" "$root/sys" "$root/tmp" "$root/var" "$root/old" "$own/tmp"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=512m shm "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --bind "$own" "$root/var"
chmod 1777 "$own/tmp"
mount --bind "$own/tmp" "$root/tmp"

hostname "$name"
ip link set lo up
cd "$root"
pivot_root . old
umount -l /old
rmdir /old
mount -o remount,ro /
echo up
trap '' CHLD # whoever is left without a parent is this one's child, and is buried by the kernel
exec sleep infinity
