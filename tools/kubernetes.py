"""Build Kubernetes for the tests, once, into a cache outside the checkout.

No package contains the server, but Debian 12's source package of kubectl does. This fetches that
source, compiles the API server, controller manager, scheduler, kubelet and kubectl, and prints the
directory of the binaries. The first build takes a quarter of an hour on two cores and needs
golang-go jq rsync make dpkg-dev.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tools import cache

VERSION = "1.20.2"
PACKAGE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
NAME = f"kubernetes-{VERSION}"
NEEDED = {
    "go": "golang-go",
    "jq": "jq",
    "rsync": "rsync",
    "make": "make",
    "dpkg-source": "dpkg-dev",
    "apt-get": "apt",
}


def _build(home: Path) -> None:
    missing = [package for name, package in NEEDED.items() if not shutil.which(name)]
    if missing:
        raise OSError(f"apt-get install {' '.join(missing)}")
    work = home / "build"
    work.mkdir()
    _compile(_fetch(work), home)
    shutil.rmtree(work)


def _try_out(home: Path) -> None:
    for program in PROGRAMS[:-1]:
        cache.run(home / program, "--version")


def _fetch(work: Path) -> Path:
    """Unpack the source, with separate package lists: the machine's may lack `deb-src`."""
    (work / "lists").mkdir()
    source = f"deb-src [signed-by={KEYRING}] {_mirror(work)} {SUITE} main\n"
    (work / "sources.list").write_text(source)
    apt = ["apt-get", "-q", "-o", f"Dir::Etc::sourcelist={work / 'sources.list'}"]
    apt += ["-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State::lists={work / 'lists'}"]
    apt += ["-o", "APT::Sandbox::User=root"]
    _run(*apt, "update", cwd=work)
    _run(*apt, "source", "--download-only", PACKAGE, cwd=work)
    (description,) = work.glob("*.dsc")
    _run("dpkg-source", "--no-check", "-x", description.name, "source", cwd=work)
    return work / "source"


def _mirror(work: Path) -> str:
    """Return the address from which this machine gets the packages of the suite."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"]
    found = subprocess.run(targets, cwd=work, check=True, capture_output=True, text=True)
    for line in found.stdout.splitlines():
        address, _, suite = line.rpartition(" ")
        if suite == SUITE:
            return address
    raise OSError(f"apt has no package source for Debian {SUITE}; add one")


def _compile(source: Path, home: Path) -> None:
    tree = source / ".go" / "src" / "k8s.io" / "kubernetes"
    tree.parent.mkdir(parents=True)
    tree.symlink_to(source)
    environment = {
        **os.environ,
        "GOPATH": str(source / ".go"),
        "GOCACHE": str(source / ".go-cache"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION": f"v{VERSION}",
        "KUBE_GIT_COMMIT": "debian",
        "KUBE_GIT_TREE_STATE": "archive",
    }
    programs = " ".join(f"cmd/{program}" for program in PROGRAMS)
    _run("make", f"WHAT={programs}", cwd=tree, env=environment)
    folder = next(
        path
        for path in (source / "_output").rglob("kubelet")
        if path.is_file() and not path.is_symlink()
    ).parent
    for program in PROGRAMS:
        shutil.copy2(folder / program, home / program)


def _run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> None:
    # Standard output contains only the path.
    subprocess.run(command, cwd=cwd, env=env, check=True, stdout=sys.stderr)


def main() -> None:
    if platform.system() != "Linux":
        sys.exit("Kubernetes for the tests runs on Linux only")
    try:
        print(cache.ensure(NAME, _build, _try_out))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"Kubernetes cannot be built: {cache.reason(error)}")


if __name__ == "__main__":
    main()
