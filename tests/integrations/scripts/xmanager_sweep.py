"""Launch a sweep with XManager, and a board: EXECUTOR IMAGE LOGS PORT SECONDS.

As on XManager's page, the trainings write below a volume that the board reads.
"""

import sys

from absl import flags
from xmanager import xm, xm_local
from xmanager.docker import docker_adapter
from xmanager.xm_local import executables

from aboard.integrations.xmanager import add_board

TRAINING = """
import pathlib, time
import aboard
run, step = aboard.init(), 0
while not pathlib.Path("/logs/enough").exists():
    run.log_metrics({"loss": 1 / (1 + step)}, step=step)
    step += 1
    time.sleep(0.1)
"""


def main(image, logs, port, seconds):
    image_id = docker_adapter.instance().get_client().images.get(image).id
    options = {"volumes": {logs: "/logs"}, "mount_gcs_path": False}
    with xm_local.create_experiment("cifar10") as experiment:
        executor = xm_local.Local(docker_options=xm_local.DockerOptions(**options))
        executable = executables.LoadedContainerImage("train", image_id)
        for lr in (0.1, 0.01):
            words = ["run", "--root", "/logs/runs", "--experiment", "cifar10"]
            words += ["--hparam", f"lr={lr}", "--", "python3", "-c", TRAINING]
            args = xm.SequentialArgs.from_collection(words)
            experiment.add(xm.Job(executable, executor, args=args))
        add_board(
            experiment,
            "/logs/runs",
            port,
            timeout_secs=seconds,
            executor=xm_local.Local(
                docker_options=xm_local.DockerOptions(**options, ports={6006: port})
            ),
            image=image,
        )
    print("the experiment has completed", flush=True)


if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
