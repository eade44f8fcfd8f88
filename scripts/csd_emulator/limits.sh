# shellcheck shell=bash
# shellcheck disable=SC2154 # variables of csd_emulator.sh: STATE, and the board's: name dir cores cpu_share memory
# A board's limits: control groups of version 1 or 2, whichever carries the controller on this machine.

# group_parent CONTROLLER: prints "1 DIR" or "2 DIR", the directory in which a group with that controller can be made; fails if there is none.
group_parent() {
  local controller=$1 type dir options
  while read -r _ dir type options _; do
    [ "$type" = cgroup ] && [[ ",$options," == *",$controller,"* ]] && [ -w "$dir" ] && { echo "1 $dir"; return; }
  done </proc/mounts
  [ "$controller" = freezer ] && controller=""
  while read -r _ dir type options _; do
    [[ $type == cgroup2 && -w $dir ]] || continue
    if [ -n "$controller" ]; then
      grep -qw "$controller" "$dir/cgroup.controllers" || continue
      if ! grep -qw "$controller" "$dir/cgroup.subtree_control"; then
        { echo "+$controller" >"$dir/cgroup.subtree_control"; } 2>/dev/null || continue
        echo "$controller $dir" >>"$STATE/.enabled"
      fi
    fi
    echo "2 $dir"
    return
  done </proc/mounts
  return 1
}

put() { { echo "$2" >"$1"; } 2>/dev/null; }

# make_groups: makes the groups of board $name with its limits. Writes their directories to $dir/groups, and limits that can't be set to $dir/notes.
make_groups() {
  local controller version parent group bytes cpus quota
  bytes=$(numfmt --from=iec "$memory")
  : >"$dir/groups"
  : >"$dir/notes"
  for controller in freezer cpuset cpu memory; do
    if ! read -r version parent < <(group_parent "$controller"); then
      case $controller in
        cpuset) echo "no control group: cores are limited by taskset, which a process on the board can undo" ;;
        cpu) [ "$cpu_share" = 100 ] || echo "no control group: --cpu-share is not enforced" ;;
        memory) echo "no control group: --memory is not enforced" ;;
        freezer) echo "no control group: freeze stops processes by SIGSTOP" ;;
      esac >>"$dir/notes"
      continue
    fi
    group=$parent/ddlp-csd-$name
    # First put on the list of what must be removed, then made: this may be interrupted.
    grep -qxF "$group" "$dir/groups" || echo "$group" >>"$dir/groups"
    mkdir -p "$group"
    case $version$controller in
      [12]cpuset)
        cpus=$(last_cpus "$cores")
        put "$group/cpuset.cpus" "$cpus"
        [ "$version" = 2 ] || put "$group/cpuset.mems" "$(cat "$parent/cpuset.mems")" ;;
      1cpu)
        quota=$((cores * cpu_share * 1000))
        put "$group/cpu.cfs_period_us" 100000
        [ "$cpu_share" = 100 ] || put "$group/cpu.cfs_quota_us" "$quota" ;;
      2cpu)
        quota=$((cores * cpu_share * 1000))
        [ "$cpu_share" = 100 ] || put "$group/cpu.max" "$quota 100000" ;;
      1memory)
        put "$group/memory.limit_in_bytes" "$bytes"
        # Without this a machine with swap space would swap instead.
        [ ! -e "$group/memory.memsw.limit_in_bytes" ] || put "$group/memory.memsw.limit_in_bytes" "$bytes" ;;
      2memory)
        put "$group/memory.max" "$bytes"
        [ ! -e "$group/memory.swap.max" ] || put "$group/memory.swap.max" 0 ;;
    esac || echo "the kernel refused the limit of $controller in $group: it is not enforced" >>"$dir/notes"
  done
}

# last_cpus N: prints a list of the last N processors that this process may use; on most machines the first ones are the busiest.
last_cpus() {
  local list part all=()
  list=$(awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status)
  for part in ${list//,/ }; do
    mapfile -t -O ${#all[@]} all < <(seq "${part%-*}" "${part#*-}")
  done
  [ "$1" -lt ${#all[@]} ] && all=("${all[@]: -$1}")
  local IFS=,
  echo "${all[*]}"
}

# join_groups: moves this process into the board's groups.
join_groups() {
  local group
  while read -r group; do echo "$BASHPID" >"$group/cgroup.procs"; done <"$dir/groups"
  if ! grep -q cpuset "$dir/groups" && grep -q taskset "$dir/notes"; then taskset -pc "$(last_cpus "$cores")" "$BASHPID" >/dev/null; fi
}

# group_pids: prints the board's processes by their numbers on the host.
group_pids() {
  local group
  [ -e "$dir/groups" ] && read -r group <"$dir/groups" && cat "$group/cgroup.procs" 2>/dev/null
}

# freeze_groups 0|1
freeze_groups() {
  local group
  while read -r group; do
    if [ -e "$group/cgroup.freeze" ]; then put "$group/cgroup.freeze" "$1" && return
    elif [ -e "$group/freezer.state" ]; then put "$group/freezer.state" "$([ "$1" = 1 ] && echo FROZEN || echo THAWED)" && return; fi
  done <"$dir/groups"
  return 1
}

remove_groups() {
  local group try
  [ -e "$dir/groups" ] || return 0
  while read -r group; do
    for try in $(seq 100); do
      [ -d "$group" ] || break
      rmdir "$group" 2>/dev/null && break
      [ "$try" -lt 100 ] || say "$group could not be removed: a process is still in it"
      sleep 0.1
    done
  done <"$dir/groups"
}

memory_used() {
  local group file
  while read -r group; do
    for file in memory.usage_in_bytes memory.current; do
      [ ! -e "$group/$file" ] || { numfmt --to=iec <"$group/$file"; return; }
    done
  done <"$dir/groups"
  echo "?"
}
