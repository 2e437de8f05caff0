"""TLS of the server: its certificate, which can be read again while the server runs."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence

from dandelion.errors import InvalidInput
from dandelion.settings import Settings

log = logging.getLogger("dandelion.frontend")


class Certificate:
    """The certificate of a server, and the TLS context with it.

    Args:
        chain: file of the certificate chain in PEM, the server's own first.
        key: file of the private key in PEM, without a password.
        protocols: that are offered to clients, best first (ALPN).

    Attributes:
        context: for new connections of the server; TLS 1.2 or later.

    Raises:
        InvalidInput: a file cannot be read, or the key does not belong to the certificate.
    """

    def __init__(self, chain: str, key: str, protocols: Sequence[str] = ("http/1.1",)) -> None:
        self._protocols = list(protocols)
        self._chain = chain
        self._key = key
        self.context = self._loaded()

    def reload(self) -> None:
        """Read the files again, for new connections; if that fails, the old ones stay in use.

        The context is a new one: a context has a certificate for each type of key, so that with
        an old RSA certificate and a new one for ECDSA it would go on with both.
        """
        try:
            self.context = self._loaded()
        except InvalidInput as error:
            log.error("the old certificate stays in use", extra={"why": str(error)})
        else:
            log.info("the certificate was read", extra={"file": self._chain})

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(self._protocols)
        try:
            context.load_cert_chain(self._chain, self._key, password="")  # never ask a terminal
        except (OSError, ValueError) as error:
            hint = "give PEM files that belong together, and a key without a password"
            what = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
            raise InvalidInput("tls_cert", f"{self._chain}, {self._key}: {what}", hint) from None
        return context


def certificate_of(
    settings: Settings, protocols: Sequence[str] = ("http/1.1",)
) -> Certificate | None:
    """Read the certificate that settings name; None if they name none. See `Certificate`.

    Raises:
        InvalidInput: see `Certificate`; also if only one of the two files is given.
    """
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not settings.tls_cert or not settings.tls_key:
        missing = "tls_key" if settings.tls_cert else "tls_cert"
        raise InvalidInput(missing, "TLS needs a certificate and its key", f"set {missing}, too")
    return Certificate(settings.tls_cert, settings.tls_key, protocols)
