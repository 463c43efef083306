"""Certificates for tests, made with openssl: a separate CA, and what it signs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None and os.environ.get("CI") != "true",  # CI installs it, and fails without it
    reason="openssl is not installed: no certificate",
)
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A private CA in `folder`. `trust` = its certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.trust = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl("req", "-x509", *_EC, "-keyout", self._key, "-out", self.trust, "-subj", "/CN=test CA", "-days", 30)

    def pair(self, name: str, days: int = 60, names: str = "DNS:localhost,IP:127.0.0.1", file: str = "") -> Pair:
        """A certificate for CN=`name`, in files that begin with `file`, or with its name."""
        base = self.folder / (file or name)
        key, request, certificate, more = (base.with_suffix(end) for end in (".key", ".csr", ".pem", ".ext"))
        _openssl("req", *_EC, "-keyout", key, "-out", request, "-subj", f"/C=DE/O=example/CN={name}")
        more.write_text(f"subjectAltName={names}\n")
        _openssl(
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.trust,
            "-CAkey",
            self._key,
            "-CAcreateserial",
            "-days",
            days,
            "-out",
            certificate,
            "-extfile",
            more,
        )
        return Pair(certificate, key)

    def revoke(self, pair: Pair | None) -> Path:
        """A revocation list that names `pair`."""
        index, settings, crl = (self.folder / name for name in ("index.txt", "crl.cnf", "crl.pem"))
        index.write_text("")
        settings.write_text(f"[ca]\ndefault_ca=d\n[d]\ndatabase={index}\ndefault_md=sha256\ndefault_crl_days=1\n")
        ours = ("-config", settings, "-keyfile", self._key, "-cert", self.trust)
        if pair is not None:
            _openssl("ca", *ours, "-revoke", pair.certificate)
        _openssl("ca", *ours, "-gencrl", "-out", crl)
        return crl


def s_client(port: int, authority: Authority, said: bytes, wanted: bytes, pair: Pair | None = None) -> bytes:
    """What `openssl s_client` reads after it `said` that, up to a line with `wanted` or to the connection's end."""
    own = () if pair is None else ("-cert", pair.certificate, "-key", pair.key)
    proof = ("-CAfile", authority.trust, "-verify_return_error", "-verify_hostname", "localhost")
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *proof, *own, "-quiet"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    program = subprocess.Popen([*map(str, words)], **pipes)  # type: ignore[call-overload]
    heard = b""
    try:
        program.stdin.write(said)
        program.stdin.flush()
        for line in program.stdout:
            heard += line
            if wanted in line:
                break
    finally:
        program.kill()
        program.communicate()
    return heard


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
