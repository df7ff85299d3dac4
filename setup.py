"""The one thing pyproject.toml cannot say: the C core is optional."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "aboard.events._scanner",
            sources=["src/aboard/events/_scanner.c"],
            depends=["src/aboard/events/scan.h"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
