"""Boards as experiments of a managed TensorBoard on Vertex AI.

A board is a process on the hub's machine that uploads the selected runs to Vertex while it runs,
and redirects requests to the experiment: see `upload`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

from aboard.executors.base import EngineReport, EngineSettings, ExecutorError, Handle, Spec
from aboard.executors.process.boards import ProcessExecutor
from aboard.executors.vertex.api import Location, Vertex, slug
from aboard.executors.vertex.upload import UPLOAD, Destination
from aboard.system import requires

with requires("pydantic"):
    from pydantic import AfterValidator, ConfigDict, Field
    from pydantic.dataclasses import dataclass

Text = Annotated[str, Field(strict=True)]


def _bucket_uri(value: str) -> str:
    if value and not value.startswith("gs://"):
        raise ValueError(f"{value!r} is not a directory in a bucket, such as gs://bucket/vertex.")
    return value.rstrip("/")


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class VertexSettings(EngineSettings):
    project: Annotated[Text, Field(description="Project of Google Cloud: its id or number.")] = ""
    location: Annotated[Text, Field(description="Region.")] = "us-central1"
    tensorboard: Annotated[
        Text,
        Field(description="Display name of the managed TensorBoard; created if it does not exist."),
    ] = "aboard"
    output: Annotated[
        Text,
        AfterValidator(_bucket_uri),
        Field(
            description="Directory of the payloads of jobs, such as `gs://bucket/vertex`, and of"
            " their base output directories if their runs are not on `gs://`. Only jobs need it."
        ),
    ] = ""
    image: Annotated[
        Text, Field(description="Image of jobs, with Aboard installed; `--image` takes precedence.")
    ] = ""
    python: Annotated[Text, Field(description="The interpreter in the image.")] = "python3"
    service_account: Annotated[
        Text,
        Field(
            description="Service account of jobs; Vertex uploads to a TensorBoard only with one."
        ),
    ] = ""
    machine_type: Annotated[
        Text,
        Field(
            description="Machine type of jobs; by default the smallest `n1` with the"
            " requested CPUs and memory."
        ),
    ] = ""
    accelerator_type: Annotated[
        Text, Field(description="Type of the GPUs of jobs, such as `NVIDIA_TESLA_T4`.")
    ] = ""
    endpoint: Annotated[
        Text,
        Field(
            description="Address of a private endpoint; `https://LOCATION-aiplatform.googleapis.com`"
            " by default."
        ),
    ] = ""

    @property
    def place(self) -> Location:
        if not self.project:
            raise ExecutorError(
                "Vertex needs a project. Set project in [executors.vertex] of aboard.toml."
            )
        return Location(self.project, self.location, self.endpoint)


class VertexExecutor(ProcessExecutor):
    """Uploads boards to a managed TensorBoard, each with a process on the hub's machine."""

    name = "vertex"
    Settings = VertexSettings
    needs_settings = True
    unit = ("experiment", "experiment")

    def start(self, spec: Spec) -> Handle:
        from aboard.storage.settings import credentials

        settings: VertexSettings = self.profiles[spec.profile]
        experiment = f"aboard-{slug(spec.board)}"
        destination = Destination(
            settings.place, settings.tensorboard, experiment, str(spec.directory)
        )
        environment = {
            **credentials(os.environ, ["gs://any"]),
            **spec.environment,
            UPLOAD: destination.to_json(),
        }
        started = super().start(replace(spec, environment=environment))
        return {**started, "experiment": experiment}

    def probe(self, profile: str = "") -> EngineReport:
        settings: VertexSettings = self.profiles[profile]
        vertex = Vertex(settings.place, patience=5.0)
        try:
            board = vertex.tensorboard(settings.tensorboard, create=False)
        except ExecutorError as error:
            return EngineReport(answers=False, problem=str(error))
        finally:
            vertex.close()
        state = str(board.get("name", "")).rpartition("/")[2] or "created by the first board"
        return EngineReport(True, "v1", {f"TensorBoard {settings.tensorboard!r}": state})
