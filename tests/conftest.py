"""Fixtures that every test may ask for."""

from hypothesis import settings

pytest_plugins = ["tests.support.stack"]

# How long an example takes says how busy the machine is.
settings.register_profile("unhurried", parent=settings(), deadline=None)
settings.load_profile("unhurried")
