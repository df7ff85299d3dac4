"""Train two members of an array with submitit: CLUSTER. The second is preempted once."""

import json
import os
import signal
import sys
import time

import submitit

import aboard

STEPS = 10


class Training:
    def __init__(self, start=0):
        self.start = start

    def __call__(self, lr):
        with aboard.init("cifar10", hparams={"lr": lr}) as run:
            for step in range(self.start, STEPS):
                run.log_metrics({"loss": lr * step}, step=step)
                if lr == 0.01 and self.start == 0 and step == STEPS // 2 - 1:
                    os.kill(os.getpid(), signal.SIGUSR2)  # as Slurm does before it preempts a job
                    time.sleep(600)
        return run.name

    def checkpoint(self, lr):
        return submitit.helpers.DelayedSubmission(Training(STEPS // 2), lr)


if __name__ == "__main__":
    executor = submitit.AutoExecutor("submitit/%j", cluster=sys.argv[1])
    executor.update_parameters(timeout_min=30, slurm_signal_delay_s=1)
    jobs = executor.map_array(Training(), [0.1, 0.01])
    for job in jobs:
        job.result()
    print(json.dumps({"jobs": [job.job_id for job in jobs]}))
