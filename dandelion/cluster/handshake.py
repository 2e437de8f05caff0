"""The proof that both ends of a connection know the cluster's secret, before anything is parsed.

All messages have a fixed size, so nothing of an unknown peer is interpreted but their bytes::

    opener:   "DNDC" version nonce
    acceptor: "DNDC" version nonce
    opener:   proof of "opener", both nonces
    acceptor: proof of "acceptor", both nonces

A proof is an HMAC-SHA256 under the secret. Its label and both nonces are in it, so it can neither
be sent back nor used again. It does not protect what follows from changes on the way:
use TLS where the network is not trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from dandelion.errors import InvalidInput

MAGIC = b"DNDC\x01"
NONCE_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
PROOF_BYTES = 32
SECRET_BYTES = 16
"""A shorter secret could be guessed."""


class BadPeer(Exception):
    """The other end broke the protocol, or is not a member; the connection ends."""


class Handshake:
    """One end of the handshake: bytes in, bytes out.

    Args:
        secret: of the cluster.
        opener: whether this end opened the connection.
        nonce: 32 random bytes, for tests.

    Attributes:
        wanted: how many bytes `received` takes next; 0 at the end.
    """

    def __init__(self, secret: bytes, opener: bool, nonce: bytes | None = None) -> None:
        self._secret = secret
        self._opener = opener
        self._mine = nonce or os.urandom(NONCE_BYTES)
        self._theirs = b""
        self.wanted = HELLO_BYTES

    def begin(self) -> bytes:
        """Return what to send first."""
        return MAGIC + self._mine if self._opener else b""

    def received(self, data: bytes) -> bytes:
        """Take `wanted` bytes; return what to send.

        Raises:
            BadPeer: the other end is no member of this cluster.
        """
        if not self._theirs:
            if data.startswith(b"\x16\x03"):
                raise BadPeer("it speaks TLS, and this node has no certificates")
            if not data.startswith(MAGIC):
                raise BadPeer("it is no node of this version")
            self._theirs = data[len(MAGIC) :]
            if self._theirs == self._mine:
                raise BadPeer("it sent our own nonce back")
            self.wanted = PROOF_BYTES
            return self._proof(True) if self._opener else MAGIC + self._mine
        if not hmac.compare_digest(data, self._proof(not self._opener)):
            raise BadPeer("it does not know the secret of this cluster")
        self.wanted = 0
        return b"" if self._opener else self._proof(False)

    def _proof(self, opener: bool) -> bytes:
        nonces = self._mine + self._theirs if self._opener else self._theirs + self._mine
        label = b"opener" if opener else b"acceptor"
        return hmac.new(self._secret, label + nonces, hashlib.sha256).digest()


def check_secret(secret: bytes) -> bytes:
    """Return a secret that is long enough.

    Raises:
        InvalidInput: it is too short.
    """
    if len(secret) < SECRET_BYTES:
        hint = f"give {SECRET_BYTES} bytes or more, such as those of 'openssl rand -hex 32'"
        raise InvalidInput("cluster_secret", f"{len(secret)} bytes are too few", hint)
    return secret
