# Runs the command of both batch scripts in the background, so that signals are handled at once.
# Slurm signals all processes of a job together, and bash 5.2 may lose the exit code of a child
# that exits while a signal interrupts `wait`. So another shell runs the command in its foreground,
# and reports its process id and its exit code.
aboard_task='' aboard_code='' aboard_begun='' aboard_deferred=''

# Start a command; aboard_task is its process.
aboard_spawn() {
  aboard_begun=1
  exec 4>&1
  exec 3< <(
    trap : TERM USR1 USR2 # this shell outlives the command
    exec 5>&2 2>/dev/null # bash would print the signal that killed it
    (
      trap - INT QUIT TERM USR1 USR2
      echo "task $BASHPID"
      exec >&4 2>&5 3<&- 4>&- 5>&-
      exec "$@"
    )
    echo "code $?"
  )
  aboard_shell=$!
  aboard_report
  [ -z "$aboard_deferred" ] || "$aboard_deferred"
}

# Wait until the command exits; aboard_code is its exit code. `wait`, not `read`: the trap of a
# signal that arrives just before `read` would run only after it.
aboard_join() {
  while kill -0 "$aboard_shell" 2>/dev/null; do
    wait "$aboard_shell" 2>/dev/null
  done
  while [ -z "$aboard_code" ] && aboard_report; do :; done
  : "${aboard_code:=137}" # that shell was killed too
}

# Read the next report of the other shell.
aboard_report() {
  local word number
  read -r word number <&3 || return
  case $word in
    task) aboard_task=$number ;;
    code) aboard_code=$number ;;
  esac
}

# For the function of a trap, `aboard_has_task FUNCTION END...`: whether there is a process to
# signal. Before the command starts, END exits the script; while it starts, FUNCTION is deferred.
aboard_has_task() {
  [ -n "$aboard_begun" ] || "${@:2}"
  [ -n "$aboard_task" ] || aboard_deferred=$1
  [ -n "$aboard_task" ]
}
