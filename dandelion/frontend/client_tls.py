"""TLS of the clients: which certificates they accept."""

from __future__ import annotations

import os
import ssl
import warnings
from typing import TypeAlias

from dandelion.errors import InvalidInput

Tls: TypeAlias = bool | str | os.PathLike[str] | ssl.SSLContext
"""See `dandelion.frontend.client.Client`."""


class UnverifiedNode(UserWarning):
    """A client does not check the certificate of its node."""


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Make the context that a caller describes; TLS 1.2 or later unless the caller made it.

    Raises:
        InvalidInput: the file of certificates cannot be read, or the value has a wrong type.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool | str | os.PathLike):
        hint = "give True, False, a path, or an ssl.SSLContext"
        raise InvalidInput("tls", f"{tls!r} is none of the accepted values", hint)
    file = None if isinstance(tls, bool) else os.fspath(tls)
    try:
        context = ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        hint = "give a file of certificates in PEM"
        raise InvalidInput("tls", f"{file}: {reason}", hint) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls is False:
        message = "the certificate of the node is not checked, so any server can read the token"
        warnings.warn(message, UnverifiedNode, stacklevel=4)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
