"""The certificates by which servers are verified."""

from __future__ import annotations

import os
import ssl
import sys


def build_tls_context() -> ssl.SSLContext:
    """Build the context of connections that verify servers against the system's
    certificates, or those of SSL_CERT_FILE or SSL_CERT_DIR.

    Reads the certificates of all authorities, which takes about 30 ms.
    """
    context: ssl.SSLContext
    if sys.platform in ("darwin", "win32") and not (
        os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    ):
        # There OpenSSL finds no certificates, or only those that other programs have
        # used: the system itself verifies.
        import truststore  # noqa: PLC0415 - is installed on these systems alone

        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        # OpenSSL itself reads SSL_CERT_FILE and SSL_CERT_DIR.
        context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
