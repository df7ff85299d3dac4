"""The one thing pyproject.toml cannot say: the C cores are optional."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"aboard.events.{core}",
            sources=[f"src/aboard/events/{core}.c"],
            depends=[
                f"src/aboard/events/{name}.h" for name in ("crc", "wire", "scan", "pack", "small")
            ],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
        for core in ("_scanner", "_encoder")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
