# The batch script of a task, after child.sh and lines that set: aboard_place, aboard_payload,
# aboard_environment, aboard_workdir, aboard_python, aboard_offset, the arrays aboard_launch and
# aboard_command, and the function aboard_setup. The prefix avoids conflicts with the variables of
# the user, which the task gets.
aboard_number=$((aboard_offset + ${SLURM_ARRAY_TASK_ID:-0}))
aboard_job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
aboard_start=$aboard_place/tasks/$aboard_number.$aboard_job.${SLURM_RESTART_COUNT:-0}
aboard_time=''

aboard_finish() {
  mv "$aboard_start" "$aboard_start.$1$aboard_time" 2>/dev/null
  exit "$1"
}
aboard_fail() {
  echo "aboard: $1" >&2
  aboard_finish 1
}
# Forwards a signal that only the script got. A signal to all processes of the job then arrives
# twice, which `aboard run` counts once. srun would kill its ranks at once, so Slurm signals them.
aboard_end() {
  aboard_has_task aboard_end aboard_finish 143 || return
  if [ ${#aboard_launch[@]} = 0 ]; then
    kill -TERM "$aboard_task" 2>/dev/null
  else
    scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null
    (sleep 30 && aboard_kill) 2>/dev/null &
  fi
}
# Slurm kills all other processes when the script exits.
aboard_kill() {
  aboard_has_task aboard_kill aboard_finish 137 || return
  kill "$([ ${#aboard_launch[@]} = 0 ] && echo -KILL || echo -TERM)" "$aboard_task" 2>/dev/null
}
# Slurm's warning before the time limit. If it announces a preemption, the task runs until Slurm ends
# the job: a job that exits by itself is not requeued.
aboard_warn() {
  [[ $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null) == *PreemptTime=[0-9]* ]] && return
  aboard_time=.time
  aboard_end
}
trap aboard_end TERM
trap aboard_warn USR1
trap aboard_kill USR2

: >"$aboard_start" || aboard_fail "$aboard_place: cannot be written on the node $(hostname)."
[ -r "$aboard_payload" ] || aboard_fail "$aboard_payload: cannot be read on the node $(hostname)."
. "$aboard_environment"
aboard_setup
cd "$aboard_workdir" || aboard_fail "$aboard_workdir: working directory not found on the node\
 $(hostname). Submit from a directory on a file system that the nodes share."
command -v "$aboard_python" >/dev/null || aboard_fail "$aboard_python: program not found on\
 the node $(hostname). Install Aboard where all nodes see it, or set python in the settings."

aboard_spawn "${aboard_launch[@]}" "${aboard_command[@]}" "$aboard_number" </dev/null
aboard_join
aboard_finish "$aboard_code"
