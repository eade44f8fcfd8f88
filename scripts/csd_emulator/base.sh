# shellcheck shell=bash
# shellcheck disable=SC2154 # a variable of csd_emulator.sh: SUITE
# The recipe of the Debian system that boards boot from: made once, kept in the cache, used by every board as a read-only lower layer.
#
# Packages are fetched and unpacked by the host's own apt and dpkg, at full speed; only their maintainer scripts run under qemu.
# That takes a third of the time of debootstrap, which does all of it under qemu.

BARE_PACKAGES=("?essential" apt openssh-server sudo mount procps iproute2)
READY_PACKAGES=(python3 python3-numpy python3-pil python3-zmq)

# Not unpacked: a board needs no manual, and every file costs time.
DPKG_OPTIONS=(--path-exclude='/usr/share/doc/*' --path-exclude='/usr/share/man/*' --path-exclude='/usr/share/locale/*'
  --path-exclude='/usr/share/info/*' --force-unsafe-io)

# Imported once while the system is made, so that their byte code is there: compiling all of Python under qemu takes minutes.
WARM_IMPORTS="argparse ast asyncio base64 bisect collections concurrent.futures configparser contextlib copy csv ctypes dataclasses datetime
  difflib email.message enum errno fcntl fractions functools gc getpass glob gzip hashlib heapq hmac http.client importlib.metadata importlib.resources
  importlib.util inspect io itertools json logging.handlers math mmap multiprocessing.connection numbers operator os pathlib pickle platform
  pprint queue random re resource runpy secrets select selectors shlex shutil signal site socket sqlite3 stat statistics string struct subprocess
  sysconfig tarfile tempfile textwrap threading time timeit traceback types typing unittest urllib.request uuid venv warnings weakref zipapp zipfile
  zipimport zlib numpy numpy.linalg numpy.random numpy.testing PIL.Image PIL.ImageDraw PIL.ImageEnhance PIL.ImageFilter PIL.ImageOps
  PIL.JpegImagePlugin PIL.PngImagePlugin PIL.WebPImagePlugin PIL.features zmq zmq.auth zmq.auth.thread zmq.utils.monitor"


# build ARCH DIR: runs in namespaces of its own.
build() {
  local arch=$1 work=$2
  mkdir -p "$work"
  SECONDS=0
  exec 3>&2 >"$work.log" 2>&1
  trap 'tail -n 15 "$work.log" >&3' ERR
  set -E
  mount --make-rprivate /
  fetch "$arch" "$work"
  step "unpacking the bare system"
  unpack_base "$work/bare" "$work/debs" "$work/bare.list"
  configure "$work/bare"
  settle "$work/bare"
  step "adding Python, numpy, Pillow and pyzmq"
  cp -a "$work/bare" "$work/ready"
  local new
  mapfile -t new < <(comm -13 "$work/bare.list" "$work/ready.list")
  (cd "$work/debs" && unpack "$work/ready" "${new[@]}")
  configure "$work/ready"
  step "compiling what Python will import"
  mount -t proc proc "$work/ready/proc"
  # A clean environment: the host's may forbid writing byte code, or name modules of its own.
  for module in $WARM_IMPORTS; do echo "import $module"; done | chroot "$work/ready" /usr/bin/env -i PATH=/usr/bin python3 -
  umount "$work/ready/proc"
  package_index "$work" "${new[@]}"
  step "done in $SECONDS s"
}

step() { echo "== $* ($SECONDS s)"; echo "csd_emulator: $*" >&3; }

# mirror: prints the URL of a Debian mirror.
mirror() {
  local found=${DDLP_CSD_MIRROR:-}
  # shellcheck disable=SC2016 # apt's own $(...)
  [ -n "$found" ] || found=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
    sed -nE 's/^Debian\|Debian\|//p; s/^\|\|(.*\/debian\/?)$/\1/p' | head -n 1) # the second: lists were never fetched
  [ -n "$found" ] || found=$(sed -nE 's/^DEF_MIRROR="(.*)"$/\1/p' "$(command -v debootstrap)" 2>/dev/null | head -n 1) || true
  [ -n "$found" ] || die "no Debian mirror is known: this machine's apt has none, and debootstrap is not installed" \
    "name one: DDLP_CSD_MIRROR=URL, or: apt-get install debootstrap"
  echo "$found"
}

# fetch ARCH DIR: .debs of all packages to DIR/debs, their names to DIR/bare.list and DIR/ready.list.
fetch() {
  local arch=$1 work=$2 apt=$2/apt
  local from
  from=$(mirror)
  mkdir -p "$apt/etc" "$apt/state/lists/partial" "$work/debs/partial"
  : >"$apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $SUITE main" >"$apt/etc/sources.list"
  {
    echo "Dir::State \"$apt/state\"; Dir::State::status \"$apt/status\"; Dir::Cache \"$apt/cache\"; Dir::Cache::archives \"$work/debs\";"
    echo "Dir::Etc \"$apt/etc\"; Dir::Etc::Parts \"none\"; Dir::Etc::SourceParts \"none\"; Dir::Etc::PreferencesParts \"none\";"
    echo "APT::Architecture \"$arch\"; APT::Architectures { \"$arch\"; }; APT::Install-Recommends \"false\"; APT::Sandbox::User \"root\";"
    echo 'Acquire::Languages "none"; Acquire::Retries "3"; APT::Get::Assume-Yes "true";'
    # How this machine reaches mirrors (a proxy, say) holds for the board's packages as well.
    apt-config dump Acquire | grep -iE '^Acquire::(https?|Check)' || true
  } >"$apt/apt.conf"
  mkdir -p "$apt/cache"
  step "fetching packages from $from"
  export APT_CONFIG=$apt/apt.conf
  apt-get update
  for kind in bare ready; do
    local packages=("${BARE_PACKAGES[@]}")
    [ "$kind" = bare ] || packages+=("${READY_PACKAGES[@]}")
    apt-get -q --print-uris install "${packages[@]}" | awk '/^\x27/ {print $2}' | LC_ALL=C sort >"$work/$kind.list"
  done
  apt-get -q --print-uris install "?essential" | awk '/^\x27/ {print $2}' >"$work/essential.list"
  apt-get -q --download-only install "${packages[@]}"
  unset APT_CONFIG
  rm -rf "$apt" "$work/debs/partial" "$work/debs/lock"
}

# unpack_base ROOT DEBS LIST: from nothing to "everything unpacked".
unpack_base() {
  local root=$1 debs=$2 list=$3 dir names
  mkdir -p "$root"/usr/{bin,sbin,lib} "$root"/{proc,sys,dev,run,tmp,root,data,spool} "$root"/var/lib/dpkg/{info,updates,triggers,parts} "$root"/etc/dpkg/dpkg.cfg.d \
    "$root/var/log/apt"
  for dir in bin sbin lib; do ln -s "usr/$dir" "$root/$dir"; done
  : >"$root/var/lib/dpkg/status"
  : >"$root/var/lib/dpkg/available"
  # Scripts run before the packages they need are installed in name: their files must be there already.
  while read -r name; do
    dpkg-deb --fsys-tarfile "$debs/$name" | tar -x --keep-directory-symlink -C "$root" --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale'
  done <"${list%/*}/essential.list"
  printf '%s\n' "${DPKG_OPTIONS[@]#--}" >"$root/etc/dpkg/dpkg.cfg.d/small"
  devices "$root"
  mapfile -t names <"$list"
  (cd "$debs" && unpack "$root" "${names[@]}")
}

# unpack ROOT DEB...: the host's dpkg unpacks at full speed; it knows nothing of armhf, hence the force.
unpack() {
  local root=$1
  shift
  dpkg --root="$root" --log=/dev/null "${DPKG_OPTIONS[@]}" --force-architecture --force-depends --force-confdef --force-confold \
    --force-script-chrootless --no-triggers --unpack "$@"
}

devices() {
  local root=$1
  mkdir -p "$root/dev/pts" "$root/dev/shm"
  mknod -m 666 "$root/dev/null" c 1 3
  mknod -m 666 "$root/dev/zero" c 1 5
  mknod -m 444 "$root/dev/random" c 1 8
  mknod -m 444 "$root/dev/urandom" c 1 9
}

# configure ROOT: the packages' own scripts, under qemu.
configure() {
  local root=$1 stub real
  mount -t proc proc "$root/proc"
  # Stubs for what would start services, make host keys that no board keeps, or compile byte code for minutes.
  for stub in usr/sbin/policy-rc.d usr/bin/ssh-keygen usr/bin/python3.11 usr/bin/py3compile; do
    real=$root/$stub
    [ ! -e "$real" ] || mv "$real" "$real.real"
    printf '#!/bin/sh\n%s\n' "$([ "$stub" = usr/sbin/policy-rc.d ] && echo 'exit 101' || echo 'exit 0')" >"$real"
    chmod 755 "$real"
  done
  chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    sh -e -c '[ -s /etc/passwd ] || dpkg --force-depends --configure base-passwd base-files; dpkg --configure -a'
  for stub in usr/sbin/policy-rc.d usr/bin/ssh-keygen usr/bin/python3.11 usr/bin/py3compile; do
    real=$root/$stub
    rm "$real"
    [ ! -e "$real.real" ] || mv "$real.real" "$real"
  done
  umount "$root/proc"
}

# package_index DIR DEB...: DIR/debs holds what makes a bare board ready, as a repository that apt on the board can install from.
package_index() {
  local work=$1 deb name
  shift
  while read -r name; do rm -f "$work/debs/$name"; done <"$work/bare.list"
  for deb in "$@"; do
    dpkg-deb --field "$work/debs/$deb"
    echo "Filename: ./$deb"
    echo "Size: $(stat -c %s "$work/debs/$deb")"
    echo "SHA256: $(sha256sum "$work/debs/$deb" | cut -d' ' -f1)"
    echo
  done >"$work/debs/Packages"
  # Without this apt tries names of all compressed forms first and complains about each.
  {
    echo "Suite: board"
    echo "Date: $(date -Ru)"
    echo "SHA256:"
    echo " $(sha256sum "$work/debs/Packages" | cut -d' ' -f1) $(stat -c %s "$work/debs/Packages") Packages"
  } >"$work/debs/Release"
}

# settle ROOT: what makes a Debian system a board: users, sshd, an init.
settle() {
  local root=$1
  # "*", not "!": sshd without PAM takes the latter for a locked account and refuses keys as well.
  sed -i 's/^root:[^:]*:/root:*:/' "$root/etc/shadow"
  echo 'ddlp:x:1000:1000::/home/ddlp:/bin/bash' >>"$root/etc/passwd"
  echo 'ddlp:*:19700:0:99999:7:::' >>"$root/etc/shadow"
  echo 'ddlp:x:1000:' >>"$root/etc/group"
  cp -a "$root/etc/skel" "$root/home/ddlp"
  chown -R 1000:1000 "$root/home/ddlp"
  echo 'ddlp ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/ddlp"
  rm -f "$root"/etc/ssh/ssh_host_*
  # No PAM: it costs a second a login under qemu. Of the key exchanges the usual one, with sntrup761, takes a quarter of a login.
  cat >"$root/etc/ssh/sshd_config.d/board.conf" <<'EOF'
UsePAM no
UseDNS no
KexAlgorithms curve25519-sha256
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
SetEnv LANG=C.UTF-8
EOF
  # apt drops to a user that may not read where a person put packages; it is silent about why it then fails.
  echo 'APT::Sandbox::User "root"; APT::Install-Recommends "false"; Acquire::Languages "none";' >"$root/etc/apt/apt.conf.d/board"
  : >"$root/etc/apt/sources.list"
  # As boards have it; a plain file, always 42 degrees.
  mkdir -p "$root/sys/class/thermal/thermal_zone0"
  echo 42000 >"$root/sys/class/thermal/thermal_zone0/temp"
  echo cpu-thermal >"$root/sys/class/thermal/thermal_zone0/type"
  cat >"$root/usr/sbin/csd-init" <<'EOF'
#!/bin/sh
# Process 1 of the board. What a board does not need is dropped first: root here must not set the host's clock or load modules.
if [ "$1" != settled ]; then
  umount -l /.host && rmdir /.host
  exec setpriv --bounding-set -sys_time,-sys_module,-sys_boot,-sys_rawio,-sys_admin,-mknod,-syslog,-mac_admin,-mac_override "$0" settled
fi
# A shell that waits for one child buries all others as well: what a service forked twice and left has this as its parent.
while :; do
  /usr/sbin/sshd -D -e
  sleep 1
done
EOF
  chmod 755 "$root/usr/sbin/csd-init"
}
