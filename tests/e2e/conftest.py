"""Fixtures of the proofs on a whole site."""

from tests.support.site import real_slurm, site  # noqa: F401 - fixtures
