"""Certificates as docs/sign-in.md makes them: by openssl, with an authority of their own."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Pair(NamedTuple):
    cert: Path
    key: Path

    def put(self, newer: "Pair") -> None:
        """Replaces both files, each at once, the key first."""
        for place, source in ((self.key, newer.key), (self.cert, newer.cert)):
            fresh = place.with_suffix(".fresh")
            fresh.write_bytes(source.read_bytes())
            fresh.chmod(0o600)
            os.replace(fresh, place)


def openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Authority:
    """`folder/NAME.crt` and `.key`, and what it signs beside them."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self.cert, self._key = folder, folder / f"{name}.crt", folder / f"{name}.key"
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        openssl(
            *("req", "-x509", *_EC, "-days", "2", "-subj", f"/CN=Test {name}", "-addext", usage),
            *("-keyout", self._key, "-out", self.cert),
        )

    def sign(self, file: str, common: str, names: str = "", *dates: str) -> Pair:
        """`names` as in subjectAltName. `dates`: of `openssl x509`, a day without."""
        request, key, cert = (self._folder / f"{file}.{kind}" for kind in ("csr", "key", "crt"))
        alternative = ["-addext", f"subjectAltName={names}"] if names else []
        openssl("req", *_EC, "-subj", f"/CN={common}", *alternative, "-keyout", key, "-out", request)
        lasts = dates or ("-days", "1")
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial"),
            *(*lasts, "-copy_extensions", "copy", "-out", cert),
        )
        return Pair(cert, key)
