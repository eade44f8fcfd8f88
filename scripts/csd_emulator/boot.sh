#!/usr/bin/env bash
# Process 1 of a board, in namespaces of its own: builds its mount tree and network, then becomes the board's init.
# All mounts are made here, so that none can outlive the board.
#
#   boot.sh BOARD_DIR HOST_NETWORK_NAMESPACE
# shellcheck disable=SC2154 # the board's settings come from its record
set -euo pipefail
dir=$1 host_net=$2
# shellcheck source=/dev/null
source "$dir/record"
# This is still the host's /proc: it has this process's number on the host, and its start time.
read -r -a stat </proc/self/stat
echo "${stat[0]} ${stat[21]}" >"$dir/pid"
mount --make-rprivate /

hostname "$name"
ip link set lo up
ip link add eth0 type veth peer name "$link" netns "$host_net"
nsenter --net="$host_net" sh -c "ip addr add $host_ip/24 dev $link && ip link set $link up"
ip addr add "$ip/24" dev eth0
ip link set eth0 up

mkdir -p "$dir/disk" "$dir/root"
if [ -e "$dir/disk.img" ] && mount -o loop,noatime "$dir/disk.img" "$dir/disk" 2>/dev/null; then :; else
  echo "no loop device: the disk is in memory, counts as the board's memory, and is lost when the board is killed" >>"$dir/notes"
  mount -t tmpfs -o "size=$disk" disk "$dir/disk"
fi
upper=$dir/disk/upper root=$dir/root
mkdir -p "$upper" "$dir/disk/work"
# xino=off: 32-bit programs cannot read inode numbers of more than 32 bits.
if ! mount -t overlay -o "xino=off,lowerdir=$base,upperdir=$upper,workdir=$dir/disk/work" board "$root" 2>/dev/null &&
  ! mount -t overlay -o "lowerdir=$base,upperdir=$upper,workdir=$dir/disk/work" board "$root"; then
  echo "no overlay file system: the board has a full copy of its system" >>"$dir/notes"
  [ -e "$upper/etc" ] || cp -a "$base/." "$upper/"
  mount --bind "$upper" "$root"
fi

if [ ! -e "$root/etc/ssh/ssh_host_ed25519_key" ]; then # the first boot
  echo "$name" >"$root/etc/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n%s host\n' "$name" "$host_ip" >"$root/etc/hosts"
  install -m 600 "$dir/host_key" "$root/etc/ssh/ssh_host_ed25519_key"
  install -m 644 "$dir/host_key.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
  echo "Port $port" >"$root/etc/ssh/sshd_config.d/port.conf"
  for home in root home/ddlp; do
    install -d -m 700 "$root/$home/.ssh"
    install -m 600 "$dir/id_ed25519.pub" "$root/$home/.ssh/authorized_keys"
    chown -R --reference="$root/$home" "$root/$home/.ssh"
  done
fi

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o nosuid,mode=755,size=1m dev "$root/dev"
mkdir "$root"/dev/{pts,shm}
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
  read -r node major minor <<<"$device"
  mknod -m 666 "$root/dev/$node" c "$major" "$minor"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
half=$(($(numfmt --from=iec "$memory") / 2))
mount -t tmpfs -o "nosuid,nodev,mode=1777,size=$half" shm "$root/dev/shm"
mount -t tmpfs -o "nosuid,nodev,mode=755,size=$half" run "$root/run"
mkdir -p "$root/run/sshd" "$root/run/lock"

mkdir -p "$root/data" "$root/spool"
mount --bind "$data" "$root/data"
[ "$data_read_only" = no ] || mount -o remount,bind,ro "$root/data"
if [ -n "$spool" ]; then mount --bind "$spool" "$root/spool"; else chmod 1777 "$root/spool"; fi
if [ "$kind" = bare ] && [ "$debs" = yes ]; then
  mkdir -p "$root/opt/debs"
  mount --bind "${base%/*}/debs" "$root/opt/debs"
  mount -o remount,bind,ro "$root/opt/debs"
  echo "deb [trusted=yes] file:/opt/debs ./" >"$root/etc/apt/sources.list"
fi

mkdir -p "$root/.host"
cd "$root"
pivot_root . .host
exec chroot . /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 /usr/sbin/csd-init </dev/null
