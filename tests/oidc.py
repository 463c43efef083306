"""A small OIDC issuer for tests: real keys, and a real web server that publishes them."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.patience import DEADLINE_S

AUDIENCE = "amq-shop"
KEYS_PATH, DISCOVERY_PATH = "/keys", "/.well-known/openid-configuration"


class Issuer:
    """Serves until `close`. `asked` = the paths that somebody has got; `answers` = what is served, by path: JSON, bytes
    as they are, an Event that holds the answer back until it is set, or a function that talks to the socket itself."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.asked: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                answer = issuer.answers.get(self.path)
                if callable(answer):
                    with suppress(OSError):  # the one who asked has given up
                        answer(self.connection)
                    self.close_connection = True
                    return
                if isinstance(answer, threading.Event):
                    answer.wait(DEADLINE_S)
                    answer = None
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    self.wfile.write(data)
                except OSError:
                    return  # the one who asked has given up

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.answers: dict[str, Any] = {
            DISCOVERY_PATH: {"issuer": self.url, "jwks_uri": self.url + KEYS_PATH},
            KEYS_PATH: {"keys": [jwk(self.rsa, "r1"), jwk(self.ec, "e1")]},
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def claims(self, **more: Any) -> dict[str, Any]:
        """Of a token that is right for five minutes; None leaves one out."""
        now = int(time.time())
        found = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300, **more}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, key: Any = None, algorithm: str = "RS256", kid: str | None = "r1", **more: Any) -> str:
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**more), self.rsa if key is None else key, algorithm, headers)

    @property
    def options(self) -> dict[str, str]:
        """Of a broker that believes it."""
        return {"tokenIssuer": self.url, "tokenAudience": AUDIENCE, "tokenRoles": "realm_access.roles"}


def jwk(private: Any, kid: str, **more: Any) -> dict[str, Any]:
    """The public key as an issuer publishes it."""
    kind = jwt.algorithms.RSAAlgorithm if isinstance(private, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = kind.to_jwk(private.public_key(), as_dict=True)
    return {**found, "kid": kid, "use": "sig", **more}


def pem(private: Any) -> bytes:
    return bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
