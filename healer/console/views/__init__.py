"""The data of the console's templates, as functions of what healer knows. Pure."""

from types import SimpleNamespace


class Shown(SimpleNamespace):
    """A row or another part of a page: named and filled where it is made, and read by its template."""
