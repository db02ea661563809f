"""TLS of the server's sockets, with a certificate that can be reloaded."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..settings import Settings, SettingsError


def build_tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Build the context for TLS 1.2 and 1.3; None without a certificate. Raises
    SettingsError for an invalid one.
    """
    if settings.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # HTTP/2 is not served: a client that offers both must choose HTTP/1.1.
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Load the certificate chain and its key, for all connections that are accepted
    from now on.

    Raises:
        SettingsError: they cannot be read, or do not match; the previous ones stay in
            use.
    """
    assert settings.ssl_certfile is not None
    # The error of `load_cert_chain` does not say which of the two files is missing.
    for flag, path in (
        ("--ssl-certfile", settings.ssl_certfile),
        ("--ssl-keyfile", settings.ssl_keyfile),
    ):
        if path is not None and not Path(path).is_file():
            raise SettingsError(f"{flag}: {path} does not exist")

    def refuse_password() -> str:
        # Without this callback OpenSSL would prompt for the password on the terminal.
        raise SettingsError(
            "--ssl-keyfile: the key is encrypted; store it without a password, readable by the "
            "server only"
        )

    # Loaded into a new context first: a failure could leave the one in use with a
    # certificate and the wrong key.
    for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            each.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, refuse_password)
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            raise SettingsError(
                f"--ssl-certfile: {settings.ssl_certfile}: {reason.replace('_', ' ').lower()}"
            ) from error
        except OSError as error:
            raise SettingsError(
                f"--ssl-certfile: {error.filename or settings.ssl_certfile}: {error.strerror}"
            ) from error
