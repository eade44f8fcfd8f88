#!/usr/bin/env bash
# An emulated computational storage device (a "board"): a Debian ARM system under qemu with its own address, reached over SSH.
#
#   sudo ./scripts/csd_emulator.sh up                                # a 32-bit ARM board csd0: 2 cores, 512 MB, Python, numpy, Pillow, pyzmq
#   sudo ./scripts/csd_emulator.sh ssh csd0 uname -m                 # armv7l
#   sudo ./scripts/csd_emulator.sh up --name csd1 --arch arm64 --cores 1 --cpu-share 50 --data ~/photos
#   sudo ./scripts/csd_emulator.sh status
#   sudo ./scripts/csd_emulator.sh down --all                        # nothing is left but the cached system
#
# Commands
#   up            make a board and start it; the first time, make the Debian system too (minutes; cached from then on)
#     --name NAME           default csd0; up to 11 letters, digits, hyphens
#     --arch armhf|arm64    default armhf, 32-bit ARMv7 as on a Zynq-7000; arm64 as on a DPU or a Raspberry Pi
#     --bare                without Python and its packages; the board has their .debs in /opt/debs, as an apt source
#     --no-debs             with --bare: without the .debs too
#     --cores N             default 2, at most what this machine has
#     --cpu-share PERCENT   of each core, default 100
#     --memory SIZE         default 512M; if processes need more, one is killed. qemu's own memory counts: about 10M a process
#     --disk SIZE           default 1G: how much may be written on the board, its system not counted
#     --port PORT           of the board's sshd, default 22
#     --data DIR            host directory that the board sees as /data; default: a new empty one. --data-writable: it may write there
#     --spool DIR           host directory that the board sees as /spool; default: a new one. --no-shared-spool: /spool is the board's own
#   down          --name NAME or --all: end boards and remove all that belongs to them. Directories of --data and --spool stay as they are
#   status        [NAME]: address, processes, memory, limits, paths
#   ssh           NAME [COMMAND...]: as root; "ssh -F <path that status prints> ddlp@csd0" logs in as an ordinary user (with sudo)
#   kill          --name NAME: pull the plug. Disk, data and spool stay
#   start         --name NAME: start a board that was killed; it boots from its disk, with its old address and keys
#   freeze, thaw  --name NAME: stop all its processes, or let them continue; the network stays
#   net           --name NAME down|up: pull the network cable, plug it in
#
# Train with it, as with a real device (as root: nobody else may read the state directory):
#   ./scripts/csd_emulator.sh up --data ~/photos
#   ddlp deploy ddlp@csd0 -F /var/lib/ddlp-csd-emulator/csd0/ssh_config --name csd0 --root /data --host-root ~/photos \
#       --spool /spool --host-spool /var/lib/ddlp-csd-emulator/csd0/spool
#   then DDLPLoader(..., strategy="wrr", csd="csd0")
#
# On the board the clock, /proc and the kernel are the host's. It reaches the host at 10.77.N.1 and nothing else.
#
# DDLP_CSD_CACHE    directory for the Debian systems (default /var/cache/ddlp-csd-emulator; 300 MB for armhf, 450 MB for arm64)
# DDLP_CSD_STATE    directory for the boards while they exist (default /var/lib/ddlp-csd-emulator)
# DDLP_CSD_MIRROR   Debian mirror (default: the one of this machine's apt; where that is not Debian's, debootstrap's own)
set -euo pipefail
umask 022
SELF=$(readlink -f "$0")
CACHE=${DDLP_CSD_CACHE:-/var/cache/ddlp-csd-emulator}
STATE=${DDLP_CSD_STATE:-/var/lib/ddlp-csd-emulator}
SUITE=bookworm
BINFMT=/proc/sys/fs/binfmt_misc
NETWORK=10.77
# shellcheck source=SCRIPTDIR/csd_emulator/host.sh
source "${SELF%.sh}/host.sh"
# shellcheck source=SCRIPTDIR/csd_emulator/base.sh
source "${SELF%.sh}/base.sh"
# shellcheck source=SCRIPTDIR/csd_emulator/limits.sh
source "${SELF%.sh}/limits.sh"

say() { echo "csd_emulator: $*" >&2; }
die() { for line in "$@"; do say "$line"; done; exit 1; }
wrong() { die "$1" "see $0 --help"; }

need_root() {
  [ "$(id -u)" = 0 ] || die "'$command' needs root: it makes network namespaces, mounts and control groups" "run: sudo $0 $command ..."
}

# lock: one command at a time changes the set of boards.
lock() {
  while :; do
    mkdir -p "$STATE"
    exec 9>"$STATE/.lock"
    flock 9
    # The last 'down' removes this file, maybe while this command has waited for it.
    [ ! "$STATE/.lock" -ef /proc/self/fd/9 ] || return 0
  done
}
unlock() { exec 9>&-; }

boards() { local record; for record in "$STATE"/*/; do [ ! -d "$record" ] || basename "$record"; done; }

# load NAME: the board's settings as variables.
load() {
  name=$1 dir=$STATE/$1
  [ -e "$dir/record" ] || die "there is no board $1" "boards: $(boards | xargs)"
  # Assigned here for shellcheck; the record has them all.
  arch="" kind="" base="" cores="" cpu_share="" memory="" disk="" port="" data="" data_read_only="" spool="" ip="" host_ip="" link=""
  # shellcheck source=/dev/null
  source "$dir/record"
}


# birth PID: prints when the process was started; fails if it is dead. With the start time, a later process of the same number is told apart.
birth() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -r -a stat <<<"${stat##*) }"
  [ "${stat[0]}" != Z ] && echo "${stat[19]}"
}

# alive FILE: whether the process that FILE names ("number birth") runs.
alive() {
  local pid born
  [ -e "$1" ] && read -r pid born <"$1" && [ "$(birth "$pid")" = "$born" ]
}

# power_on: starts the board whose settings are loaded and waits until it answers.
power_on() {
  local tries
  make_groups
  : >"$dir/log"
  (
    trap - EXIT INT TERM
    join_groups
    exec setsid unshare --mount --net --pid --uts --ipc --fork --kill-child --propagation private \
      "${SELF%.sh}/boot.sh" "$dir" "/proc/$$/ns/net" </dev/null >>"$dir/log" 2>&1 9>&-
  ) &
  echo "$! $(birth $!)" >"$dir/keeper"
  disown
  for tries in $(seq 300); do
    alive "$dir/keeper" || { cat "$dir/log" >&2; die "$name stopped while it started: see above"; }
    [[ $(timeout 1 bash -c "exec 5<>/dev/tcp/$ip/$port && head -c 4 <&5" 2>/dev/null) != SSH- ]] || return 0
    sleep 0.1
  done
  cat "$dir/log" >&2
  die "$name does not answer at $ip port $port after $((tries / 5)) s: see above, and whether a firewall is in between"
}

# power_off: ends all that runs on the board, and removes its namespaces, mounts, network and groups. Works in any state of the board.
power_off() {
  local file pid tries
  [ ! -e "$dir/groups" ] || freeze_groups 0 || true
  for file in keeper pid; do
    ! alive "$dir/$file" || { read -r pid _ <"$dir/$file" && kill -KILL "$pid" 2>/dev/null; } || true
  done
  # The end of a namespace's first process ends all others. Others are left only if the board was stopped before it had namespaces.
  for pid in $(group_pids); do kill -KILL "$pid" 2>/dev/null || true; done
  for tries in $(seq 200); do
    alive "$dir/keeper" || alive "$dir/pid" || [ -n "$(group_pids)" ] || break
    [ "$tries" -lt 200 ] || say "$name: processes $(group_pids | xargs) do not end"
    sleep 0.05
  done
  rm -f "$dir/keeper" "$dir/pid"
  ip link delete "${link:-none}" 2>/dev/null || true
  remove_groups
  for tries in $(seq 100); do
    [ -n "$(losetup -j "$dir/disk.img" 2>/dev/null)" ] || break
    sleep 0.05
  done
}

# remove: removes the board whose settings are loaded. With the last board it also undoes the changes to this machine.
remove() {
  power_off
  [ ! -e "$dir/network" ] || ip route delete unreachable "$NETWORK.$(cat "$dir/network").0/24" metric 9999 || true
  rm -rf --one-file-system "$dir"
  tidy
}

# broken_off: removes all that 'up' has made when it fails or is interrupted.
broken_off() {
  local status=$?
  trap '' INT TERM
  trap - EXIT
  [ -z "${BUILD_PID:-}" ] || { kill -KILL "$BUILD_PID" 2>/dev/null && wait "$BUILD_PID" 2>/dev/null; } || true
  [ -z "${BUILD_DIR:-}" ] || rm -rf "$BUILD_DIR" "$BUILD_DIR.log"
  unlock
  lock
  remove
  exit "$status"
}

# shellcheck disable=SC2034 # what seems unused goes into the record
up() {
  local n setting user=${SUDO_USER:-root}
  name=csd0 arch=armhf kind=ready debs=yes cores=2 cpu_share=100 memory=512M disk=1G port=22 data="" spool="" data_read_only=yes shared_spool=yes
  while [ $# -gt 0 ]; do
    case $1 in
      --bare) kind=bare ;;
      --no-debs) debs=no ;;
      --data-writable) data_read_only=no ;;
      --no-shared-spool) shared_spool=no ;;
      --name | --arch | --cores | --cpu-share | --memory | --disk | --port | --data | --spool)
        [ $# -gt 1 ] || wrong "$1 needs a value"
        setting=${1#--}
        printf -v "${setting/-/_}" %s "$2"
        shift ;;
      *) wrong "up: unknown option $1" ;;
    esac
    shift
  done
  [[ $name =~ ^[a-z][a-z0-9-]{0,10}$ ]] || wrong "--name '$name': up to 11 small letters, digits and hyphens, a letter first"
  [[ $arch =~ ^(armhf|arm64)$ ]] || wrong "--arch '$arch': armhf or arm64"
  [[ $cores =~ ^[1-9][0-9]*$ ]] || wrong "--cores '$cores': a number from 1"
  [[ $cpu_share =~ ^[1-9][0-9]?$|^100$ ]] || wrong "--cpu-share '$cpu_share': a percentage from 1 to 100"
  [[ $port =~ ^[1-9][0-9]{0,4}$ ]] || wrong "--port '$port': a port number"
  for setting in memory disk; do
    numfmt --from=iec "${!setting}" >/dev/null 2>&1 || wrong "--$setting '${!setting}': a size such as 512M or 1G"
  done
  for setting in data spool; do
    [ -z "${!setting}" ] && continue
    [ -d "${!setting}" ] || die "--$setting ${!setting}: there is no such directory on this machine"
    printf -v "$setting" %s "$(readlink -f "${!setting}")"
  done
  [ "$cores" -le "$(nproc)" ] || { say "--cores $cores: this machine has $(nproc), the board gets those"; cores=$(nproc); }
  install_needed

  lock
  dir=$STATE/$name
  [ ! -e "$dir" ] || die "there is a board $name already" "end it with: $0 down --name $name; or take another --name"
  # From here on the board counts as existing: another board's 'down' must not undo what this one needs.
  link=""
  trap broken_off EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  mkdir "$dir"
  emulate "$arch"
  unlock
  make_base "$arch"
  base=$(base_dir "$arch")/$kind

  lock
  n=$(take_network)
  ip=$NETWORK.$n.2 host_ip=$NETWORK.$n.1 link=csd-$name
  [ -n "$data" ] || { data=$dir/data && mkdir "$data"; }
  [ "$shared_spool" = no ] || [ -n "$spool" ] || { spool=$dir/spool && mkdir "$spool" && chmod 1777 "$spool"; }
  [ "$shared_spool" = yes ] || spool=""
  {
    for setting in name arch kind debs base cores cpu_share memory disk port data data_read_only spool ip host_ip link; do
      printf '%s=%q\n' "$setting" "${!setting}"
    done
  } >"$dir/record"
  unlock
  truncate -s "$(numfmt --from=iec "$disk")" "$dir/disk.img"
  mkfs.ext4 -q -F -m 0 -O ^has_journal "$dir/disk.img"
  keys "$user"
  power_on
  trap - EXIT INT TERM
  say "$name is up: $arch at $ip, memory $memory, $cores cores at $cpu_share %"
  sed 's/^/csd_emulator: note: /' "$dir/notes" >&2
  say "log in: ssh -F $dir/ssh_config $name   (or: ssh -F $dir/ssh_config ddlp@$name)"
}

# take_network: prints the first N for which 10.77.N.0/24 is unused on this machine, and claims it by a route. While the board runs, its
# own network comes before that route. When it is killed or unplugged, the route keeps packets to it from this machine's default route.
take_network() {
  local n
  for n in $(seq 1 254); do
    [ -z "$(ip -4 route show root "$NETWORK.$n.0/24")" ] || continue
    ip route add unreachable "$NETWORK.$n.0/24" metric 9999 2>/dev/null && { echo "$n" | tee "$dir/network"; return; }
  done
  die "no free network in $NETWORK.0.0/16"
}

# keys USER: makes USER's key for the login and the board's own key. The latter is known before the first login.
keys() {
  local where=$ip
  [ "$port" = 22 ] || where="[$ip]:$port"
  ssh-keygen -q -t ed25519 -N "" -C "ddlp board $name" -f "$dir/id_ed25519"
  ssh-keygen -q -t ed25519 -N "" -C "$name" -f "$dir/host_key"
  echo "$where $(cut -d' ' -f1,2 "$dir/host_key.pub")" >"$dir/known_hosts"
  cat >"$dir/ssh_config" <<EOF
Host $name
  HostName $ip
  Port $port
  User root
  IdentityFile $dir/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $dir/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  ConnectTimeout 20
  LogLevel ERROR
EOF
  chown "$1" "$dir"/{id_ed25519,ssh_config,known_hosts}
}

down() {
  local names=() board
  case ${1:-} in
    --all) mapfile -t names < <(boards) ;;
    --name) names=("${2:?}") ;;
    *) wrong "down: --name NAME or --all" ;;
  esac
  lock
  trap '' INT TERM # a half removed board would stay
  for board in "${names[@]}"; do
    name=$board dir=$STATE/$board link=csd-$board
    [ -d "$dir" ] || die "there is no board $board" "boards: $(boards | xargs)"
    remove
    say "$board is down"
  done
  [ ${#names[@]} -gt 0 ] || tidy
}

status() {
  local board
  [ $# -gt 0 ] || [ -n "$(boards)" ] || { echo "no boards"; return; }
  for board in ${1:-$(boards)}; do
    if [ -d "$STATE/$board" ] && [ ! -e "$STATE/$board/record" ]; then
      echo "$board: being made, or never finished: 'down --name $board' removes it"
      continue
    fi
    load "$board"
    echo "$name: $(state)"
    echo "  system     Debian $SUITE $arch, $kind: $base"
    echo "  address    $ip (host $host_ip), ssh port $port"
    echo "  processes  $(group_pids | wc -l)"
    echo "  memory     $(memory_used) of $memory, qemu included"
    echo "  limits     $cores cores at $cpu_share %, disk $disk"
    echo "  data       $data -> /data ($([ "$data_read_only" = yes ] && echo read-only || echo writable))"
    echo "  spool      ${spool:-not shared} -> /spool"
    echo "  ssh        ssh -F $dir/ssh_config $name"
    sed 's/^/  note       /' "$dir/notes"
  done
}

state() {
  if ! alive "$dir/pid"; then echo "off (start it again, or take it down)"; return; fi
  ip link show "$link" 2>/dev/null | grep -q 'state UP' && echo "up" || echo "up, network cable unplugged"
}

# named --name NAME: for the commands that need one board.
named() {
  [ "${1:-}" = --name ] || wrong "$command: --name NAME"
  [ -n "${2:-}" ] || wrong "$command: --name NAME"
  load "$2"
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
  "" | -h | --help | help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$SELF" ;;
  __build) build "$@" ;;
  status) status "$@" ;;
  ssh)
    [ $# -gt 0 ] || wrong "ssh: which board?"
    load "$1"
    shift
    exec ssh -F "$dir/ssh_config" "$name" "$@" ;;
  up | down | kill | start | freeze | thaw | net)
    need_root
    case $command in
      up) up "$@" ;;
      down) down "$@" ;;
      *)
        named "$@"
        case $command in
          kill) power_off ;;
          start)
            ! alive "$dir/pid" || die "$name is running"
            [ -d "$base" ] || die "$base, from which the board boots, is gone" "remove the board: $0 down --name $name"
            power_off
            lock
            emulate "$arch" # the host may have been restarted
            unlock
            power_on ;;
          freeze) freeze_groups 1 || group_pids | xargs -r kill -STOP ;;
          thaw) freeze_groups 0 || group_pids | xargs -r kill -CONT ;;
          net)
            [[ ${3:-} =~ ^(up|down)$ ]] || wrong "net: --name NAME up|down"
            ip link set "$link" "$3" ;;
        esac ;;
    esac ;;
  *) wrong "unknown command '$command'" ;;
esac
