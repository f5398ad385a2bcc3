"""What pyproject.toml cannot say yet but as an experiment of setuptools: a part that is compiled."""

from setuptools import Extension, setup

# Without a compiler midreel is installed all the same: numpy does what this does, if more slowly. It is no module to
# import: midreel/ops/neighbours.py opens it with ctypes.
setup(ext_modules=[Extension("midreel.ops._neighbours", ["midreel/ops/neighbours.c"], optional=True)])
