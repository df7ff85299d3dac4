# The batch script of a board, after child.sh and lines that set: place, log, address, grace, python,
# interface, the arrays reads, variables and command, and the function setup.
umask 077
cd "$place" || exit 1
count=${SLURM_RESTART_COUNT:-0}
node=$(hostname)
scratch='' passed=''

finish() {
  printf '%s %s %s\n' "$count" "$1" "$passed" >ended.new && mv ended.new ended
  [ -z "$scratch" ] || rm -rf "$scratch"
  exit "$1"
}
fail() {
  echo "aboard: $1" >>"$log"
  finish 1
}
end_board() {
  trap '' TERM USR1
  aboard_has_task end_board finish 143 || return
  kill -TERM "$aboard_task" 2>/dev/null
  (sleep "$grace" && kill -KILL "$aboard_task") 2>/dev/null &
}
# Slurm's warning. If it announces a preemption, the board runs until Slurm ends the job: a job that
# exits by itself is not requeued.
warn() {
  [[ $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null) == *PreemptTime=[0-9]* ]] && return
  passed=TIME
  end_board
}
kill_board() {
  passed=KILL
  aboard_has_task kill_board finish 137 || return
  kill -KILL "$aboard_task" 2>/dev/null
}
trap 'passed=TERM; end_board' TERM
trap warn USR1
trap kill_board USR2

rm -f "$address" ended
echo "$count" >running.new && mv running.new running
exec </dev/null
setup 2>>"$log"
for path in "${reads[@]}"; do
  [ -r "$path" ] || fail "$path: cannot be read on the node $node. A board on Slurm reads only\
 what the nodes share: move the runs there, or choose other nodes in the settings."
done
command -v "$python" >/dev/null || fail "$python: program not found on the node $node.\
 Install Aboard where all nodes see it, or set python in the settings."
export "${variables[@]}"
if [ -n "$interface" ]; then
  read -r _ _ _ found _ < <(ip -o -4 addr show dev "$interface" 2>/dev/null)
  [ -n "$found" ] || fail "the node $node has no network interface $interface with an address, but\
 $(ls /sys/class/net | xargs). Set interface in the settings."
  export ABOARD_HOST=${found%%/*}
fi

# Temporary files, on the disk of the node. The lock shows that the board is running; the directory
# gets its final name after it is locked. Remove those of boards that were killed.
for base in "$SLURM_TMPDIR" "$TMPDIR" /tmp; do
  [ -n "$base" ] && scratch=$(mktemp -d "$base/.aboard-XXXXXXXX" 2>/dev/null) && break
done
[ -n "$scratch" ] || fail "no temporary directory can be created on the node $node.\
 Check TMPDIR there."
if command -v flock >/dev/null; then
  for old in "$base/aboard-$UID"-*; do
    [ -O "$old" ] && flock --nonblock "$old" rm -rf "$old"
  done
  exec 9<"$scratch"
  flock --nonblock 9
fi
# Never into an existing directory: another user may have created it.
named=$base/aboard-$UID-$SLURM_JOB_ID-$count
mv -T "$scratch" "$named" 2>/dev/null && scratch=$named
export TMPDIR=$scratch ABOARD_CACHE=$scratch/cache

aboard_spawn "${command[@]}" 2>>"$log"
aboard_join
finish "$aboard_code"
