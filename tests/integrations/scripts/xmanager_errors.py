"""Add boards to an XManager experiment that cannot be: IMAGE. Prints why, as one document."""

import json
import sys

from absl import flags
from xmanager import xm_local

from aboard.integrations.xmanager import add_board

LOCAL = xm_local.Local


def on_port(outside):
    return LOCAL(docker_options=xm_local.DockerOptions(ports={6006: outside}))


if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])
    image = sys.argv[1]
    said = {}
    with xm_local.create_experiment("cifar10") as experiment:
        for name, log_dir, options in (
            ("time", "/logs", {"timeout_secs": -1, "image": image}),
            ("image", "/logs", {"image": "nothing:1"}),
            ("default image", "/logs", {}),
            ("port", "/logs", {"image": image, "executor": on_port(None)}),
            ("path", "logs", {"image": image}),
            ("executor", "/logs", {"image": image, "executor": object()}),
        ):
            try:
                add_board(experiment, log_dir, 6006, **options)
            except (ValueError, RuntimeError, TypeError) as error:
                said[name] = f"{type(error).__name__}: {error}"
        flags.FLAGS.xm_subprocess_docker_impl = True
        try:
            add_board(experiment, "/logs", 6006, image=image)
        except RuntimeError as error:
            said["command"] = f"{type(error).__name__}: {error}"
    print(json.dumps(said))
