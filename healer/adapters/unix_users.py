"""Login names of this machine."""

import pwd


def login_name(uid: int) -> str | None:
    """None: this machine knows no such user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
