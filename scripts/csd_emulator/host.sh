# shellcheck shell=bash
# What boards need of the host: programs, a kernel that runs ARM programs by qemu, and a cached Debian system.
# shellcheck disable=SC2154 # variables of csd_emulator.sh: SELF STATE CACHE SUITE BINFMT

# install_needed: installs by apt-get the programs that this script runs and that are missing.
install_needed() {
  local missing=() program package
  while read -r program package; do
    command -v "$program" >/dev/null || [ -e "$program" ] || missing+=("$package")
  done <<'EOF'
/usr/lib/binfmt.d/qemu-arm.conf qemu-user-static
/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
ip iproute2
ssh openssh-client
mkfs.ext4 e2fsprogs
mount mount
unshare util-linux
EOF
  command -v apt-get >/dev/null ||
    die "there is no apt-get here; the board's system is made by apt and dpkg" "run it on Debian or Ubuntu; of Debian's packages it also misses: ${missing[*]:-none}"
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}"; } >/dev/null </dev/null ||
    die "apt-get could not install ${missing[*]}" "install them by hand and try again"
}

# emulate ARCH: makes the kernel run programs of ARCH. Notes its changes in $STATE/.binfmt; they are undone with the last board.
emulate() {
  local arch=$1 qemu handler
  case $arch in armhf) qemu="qemu-arm" ;; arm64) qemu="qemu-aarch64" ;; esac
  [ "$arch" != arm64 ] || [ "$(uname -m)" != aarch64 ] || return 0
  if [ ! -e "$BINFMT/register" ]; then
    mount -t binfmt_misc binfmt_misc "$BINFMT" || die "cannot mount $BINFMT: is this a container without privileges?"
    echo mounted >>"$STATE/.binfmt"
  fi
  # An entry of our own, which comes before one of the system. It needs the flags F (the interpreter is found from within the
  # board's mount tree) and C (else sudo and other setuid programs get no rights there). Many systems set F only.
  handler=ddlp-csd-$arch-$(cksum <<<"$STATE" | cut -d' ' -f1)
  [ ! -e "$BINFMT/$handler" ] || return 0
  echo "$handler" >>"$STATE/.binfmt"
  printf '%sC' "$(sed -n "s/^:$qemu:/:$handler:/p" "/usr/lib/binfmt.d/$qemu.conf")" >"$BINFMT/register" || die "cannot register $handler in $BINFMT"
}

# base_dir ARCH: prints the system's directory. Its name has a checksum of the recipe, so a changed recipe makes a new system.
base_dir() { echo "$CACHE/$1-$(cksum <"${SELF%.sh}/base.sh" | cut -d' ' -f1)"; }

# make_base ARCH: makes both kinds of system for ARCH (the ready one is the bare one with more packages) unless they are cached.
make_base() {
  local arch=$1 base old
  base=$(base_dir "$arch")
  mkdir -p "$CACHE"
  exec 8>"$CACHE/.lock"
  flock -n 8 || { say "waiting for another 'up' that is making a system"; flock 8; }
  if [ ! -e "$base" ]; then
    rm -rf "$CACHE"/new.*
    # Remove systems of older recipes, except one that a running board has mounted, also of another checkout or state directory.
    for old in "$CACHE/$arch"-*; do
      grep -qsF "lowerdir=$old/" /proc/[0-9]*/mountinfo || rm -rf "$old"
    done
    BUILD_DIR=$CACHE/new.$arch
    say "making the Debian $SUITE system for $arch in $CACHE (once; a few minutes)"
    # It is made in namespaces of its own, so that its mounts and processes end with it in any case.
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$SELF" __build "$arch" "$BUILD_DIR" 8>&- &
    BUILD_PID=$!
    wait "$BUILD_PID" || die "the system for $arch could not be made: see the lines above"
    BUILD_PID=""
    mv "$BUILD_DIR.log" "$BUILD_DIR/log"
    mv "$BUILD_DIR" "$base"
    BUILD_DIR=""
  fi
  exec 8>&-
}

# tidy: if there is no board left, undoes the changes of emulate and group_parent to this machine.
tidy() {
  local line
  [ -z "$(boards)" ] || return 0
  if [ -e "$STATE/.enabled" ]; then
    while read -r line; do put "${line#* }/cgroup.subtree_control" "-${line%% *}" || true; done <"$STATE/.enabled"
  fi
  if [ -e "$STATE/.binfmt" ]; then
    while read -r line; do [ "$line" = mounted ] || put "$BINFMT/$line" -1 || true; done <"$STATE/.binfmt"
    ! grep -qx mounted "$STATE/.binfmt" || umount "$BINFMT" || true
  fi
  rm -rf --one-file-system "$STATE"
}
