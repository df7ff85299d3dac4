"""What pyproject.toml cannot say: the C cores are optional, and a checkout builds its console."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

BUILT = Path("src", "aboard", "hub", "console", "index.html")


class BuildWithConsole(build_py):
    """Build the hub's console too, where its sources and npm are at hand and it was not built."""

    def run(self) -> None:
        if Path("console").is_dir() and not BUILT.exists() and not self.editable_mode:
            self._build_console()
        super().run()

    def _build_console(self) -> None:
        npm = shutil.which("npm")
        if npm is None:
            self.warn("no console: install Node 18 or later, or run `make console` first")
            return
        for command in ([npm, "ci", "--loglevel=error"], [npm, "run", "--silent", "build"]):
            if subprocess.run(command, cwd="console", check=False).returncode:
                self.warn(f"no console: {' '.join(command[1:])} failed; try `make console`")
                return


setup(
    cmdclass={"build_py": BuildWithConsole},
    ext_modules=[
        Extension(
            f"aboard.{package}.{core}",
            sources=[f"src/aboard/{package}/{core}.c"],
            depends=[str(header) for header in Path("src", "aboard", package).glob("*.h")],
            extra_compile_args=[
                *("-O3", "-std=c11", "-Wall", "-Wextra"),
                *("-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types"),
            ],
            py_limited_api=True,
            optional=True,
        )
        for package, core in (
            ("events", "_scanner"),
            ("events", "_encoder"),
            ("storage", "_listing"),
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
