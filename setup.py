"""What pyproject.toml cannot say yet but as an experiment of setuptools: a part that is compiled."""

import os

from setuptools import Extension, setup

# Without a compiler midreel is installed all the same: numpy does what this does, if more slowly. It is no module to
# import: midreel/ops/neighbours.py opens it with ctypes. Only training uses it, so the wheel that is published leaves
# it out (MIDREEL_PURE=1): one file for every system and every Python.
extensions = [] if os.environ.get("MIDREEL_PURE") else ["midreel/ops/neighbours.c"]
setup(ext_modules=[Extension("midreel.ops._neighbours", [source], optional=True) for source in extensions])
