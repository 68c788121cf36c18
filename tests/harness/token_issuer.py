"""Issuer of JSON Web Tokens over HTTPS, for tests and benchmarks."""

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.certificates import make_certificate

KEY_ID = "one"


@dataclass(frozen=True)
class TokenIssuer:
    key: ec.EllipticCurvePrivateKey
    url: str
    ca_file: Path

    def token(self, **claims: Any) -> str:
        """Return a signed OpenID token that is valid for an hour."""
        said = {"iss": self.url, "aud": "justitia", "exp": time.time() + 3600, "sub": "alice"}
        return jwt.encode(said | claims, self.key, "ES256", {"kid": KEY_ID})


@contextmanager
def running_issuer(directory: Path) -> Iterator[TokenIssuer]:
    """Serve an OpenID issuer's discovery document and keys over HTTPS on a free port."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = make_certificate("idp", key, "idp", key, is_authority=True, address="127.0.0.1")
    ca_file, key_file = directory / "idp.pem", directory / "idp-key.pem"
    ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    shown = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    pages: dict[str, Any] = {"/keys": {"keys": [shown | {"kid": KEY_ID, "use": "sig"}]}}

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(pages.get(self.path, {})).encode()
            self.send_response(200 if self.path in pages else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_file, key_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_address[1]}"
    pages["/.well-known/openid-configuration"] = {"issuer": url, "jwks_uri": f"{url}/keys"}
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield TokenIssuer(key, url, ca_file)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
