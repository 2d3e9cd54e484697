# Runs one launch on each host of a Cloud TPU, and deletes its queued resource at the end.
#
# Google's guest agent starts it as root at every boot. core/targets/tpu.py writes values above: none
# is secret. The end may be success, failure, a limit or a missing Python; a second process deletes
# the resource if this one is killed or hangs.

set -u
export HOME="${HOME:-/root}"
umask 077
home="${STUDIO_MACHINE_HOME:-/var/lib/pretrain-studio}"
mkdir -p "$home" || home="$(mktemp -d)"
export STUDIO_MACHINE_HOME="$home"
log="$home/$NAME.log"
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
storage="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"

exec 9>"$home/startup.lock"
flock --nonblock 9 || exit 0
# The console gets a copy. A pipe to it would break if its reader were killed first.
touch "$log"
tail --pid=$$ -n 0 -F "$log" 2>/dev/null 9>&- &
exec >>"$log" 2>&1

say() { echo "studio: $*"; }

read_metadata() {
  curl -sS -f --max-time 10 --retry 5 --retry-connrefused -H 'Metadata-Flavor: Google' \
    "$metadata/$1" 9>&-
}

# Sets this host's number. A server that answers "not found" (22) belongs to a TPU with one host.
find_host() {
  local tries code
  for tries in {1..30}; do
    host="$(read_metadata attributes/agent-worker-number)" && return
    code=$?
    [ "$code" != 22 ] || break
    say "trying again ($tries): the metadata server can't be reached"
    sleep 5 9>&-
  done
  host=0
}

# Calls Google with the machine's token, on standard input: anybody may read command lines.
call() {
  local token
  token="$(read_metadata service-accounts/default/token |
    sed -n 's/.*"access_token": *"\([^"]*\)".*/\1/p')"
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl -sS --max-time 60 --config - "$@" 9>&-
}

# One process at a time: an older end of the log must not arrive last.
upload_log() {
  local part="$home/tail.$BASHPID"
  {
    flock --wait 90 8
    tail -c 65536 "$log" >"$part"
    call -f -o /dev/null -X POST -H 'Content-Type: text/plain' --data-binary "@$part" \
      "$storage/upload/storage/v1/b/$BUCKET/o?uploadType=media&name=$LOG$host.log" 2>/dev/null 8>&-
    rm -f "$part"
  } 8>"$home/upload.lock"
}

# Tries for ever: the machine costs money for as long as it is there.
delete_resource() {
  local answer wait=2
  upload_log
  while :; do
    answer="$(call -w '\n%{http_code}' -X DELETE "$RESOURCE?force=true")"
    case "${answer##*$'\n'}" in
      200 | 404) return ;;
    esac
    say "the machine can't be deleted: $answer"
    upload_log
    sleep "$wait" 9>&-
    wait=$((wait < 60 ? 2 * wait : 60))
  done
}

# Waits until host 0, which uploads its log all the time and deletes the resource, is silent.
wait_for_host_0() {
  local found last='' silent=0
  while [ "$silent" -lt "$SILENT_SECONDS" ]; do
    sleep "$ROUND_SECONDS" 9>&-
    found="$(call -f "$storage/storage/v1/b/$BUCKET/o/${LOG}0.log" 2>/dev/null |
      sed -n 's/.*"generation": *"\([0-9]*\)".*/\1/p')"
    silent=$((silent + ROUND_SECONDS))
    if [ -n "$found" ] && [ "$found" != "$last" ]; then
      last="$found" silent=0
    fi
  done
  say "host 0 is silent"
}

stop_child() {
  local child
  child="$(cat "$home/child" 2>/dev/null)" || return
  kill "-$1" -- "-$child" 2>/dev/null
}

# A process that ended but that nobody has waited for counts as ended.
is_alive() {
  local state=Z
  read -r _ _ state _ <"/proc/$1/stat"
  [ "$state" != Z ]
} 2>/dev/null

# Watches over the main process from outside of it.
guard() {
  local started
  started="$(cat "$home/$NAME.started")"
  while sleep "$ROUND_SECONDS" 9>&-; do
    upload_log
    if ! is_alive $$; then
      say "the startup script was killed"
      break
    fi
    if [ "$LIMIT_SECONDS" -gt 0 ] &&
      [ $(($(date +%s) - started)) -gt $((LIMIT_SECONDS + GRACE_SECONDS)) ]; then
      say "killed at the limit of its time"
      stop_child KILL
      break
    fi
  done
  delete_resource
}

finish() {
  trap '' TERM
  stop_child KILL
  touch "$home/$NAME.ended"
  upload_log
  [ "$host" = 0 ] || wait_for_host_0
  delete_resource
  kill "$guard"
}

run() {
  local python left limit=() peers=() endpoints child
  python="$(command -v "${STUDIO_MACHINE_PYTHON:-python3}" python3 | head -n 1)"
  if [ -z "$python" ]; then
    say "failed: this machine has no python3"
    return
  fi
  printf '%s' "$BOOTSTRAP" >"$home/$NAME.py"
  if [ "$LIMIT_SECONDS" -gt 0 ]; then
    left=$((LIMIT_SECONDS - $(date +%s) + $(cat "$home/$NAME.started")))
    limit=(--seconds $((left > 0 ? left : 1)))
  fi
  # Entries are name:port:address, in the order of the hosts.
  IFS=, read -r -a endpoints <<<"$(read_metadata attributes/worker-network-endpoints)"
  if [ "${#endpoints[@]}" -gt 1 ]; then
    peers=(--host "$host" --hosts "${#endpoints[@]}"
      --coordinator "${endpoints[0]##*:}:$COORDINATOR_PORT")
  fi
  setsid "$python" "$home/$NAME.py" "${ARGUMENTS[@]}" "${limit[@]}" "${peers[@]}" \
    </dev/null 9>&- &
  child=$!
  echo "$child" >"$home/child"
  trap 'kill -TERM "$child" 2>/dev/null' TERM
  while wait "$child"; code=$?; [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do :; done
  say "ended with exit status $code"
}

find_host
[ -e "$home/$NAME.started" ] || date +%s >"$home/$NAME.started"
rm -f "$home/child"
trap finish EXIT
guard &
guard=$!
# After a reboot, what had ended isn't run again.
[ -e "$home/$NAME.ended" ] || run
