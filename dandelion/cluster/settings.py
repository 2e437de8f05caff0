"""How a node takes part in a cluster."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dandelion.cluster.handshake import check_secret
from dandelion.cluster.kept_copies import CopyLimits
from dandelion.errors import InvalidInput
from dandelion.settings import Settings

STORE_LIMIT = 200
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,200}):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What the operator gives.

    Attributes:
        listen: the address for other nodes, ``HOST:PORT``; port 0 chooses a free one.
        secret: what all nodes of the cluster know, 16 bytes or more.
        address: how others reach it; by default `listen`. It is the node's name.
        peers: addresses of nodes, the same list on all nodes. They are the voters of the catalogue;
            a node whose address is not among them joins as one that does not vote. Without any,
            this node is the only voter.
        tls_cert, tls_key, tls_ca: files in PEM: the node's certificate chain, its key, and what
            signs those of all nodes. Without them the traffic is not encrypted.
        store: keeps the log of the catalogue instead of voters: ``folder:PATH`` or ``s3:NAME``; the
            same on all nodes. `peers` are only to find each other then.
        store_options: options of backends, by name, for the store.
        copies: how many copies of asynchronous invocations of other nodes a voter keeps.
    """

    listen: str
    secret: bytes
    address: str = ""
    peers: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    store: str = ""
    store_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    copies: CopyLimits = field(default_factory=CopyLimits)

    def __post_init__(self) -> None:
        check_secret(self.secret)
        for where, text in (("cluster_listen", self.listen), ("cluster_address", self.address)):
            if text:
                parsed_address(where, text)
        named = "cluster_address" if self.address else "cluster_listen"
        _check_name(named, self.address or self.listen)
        if len(self.store) > STORE_LIMIT:
            raise InvalidInput("cluster_store", f"it has more than {STORE_LIMIT} characters")
        for peer in self.peers:
            if parsed_address("peers", peer)[1] == 0:
                raise InvalidInput("peers", f"'{peer}' has no port", "write HOST:PORT")
        if bool(self.tls_cert) != bool(self.tls_key) or bool(self.tls_cert) != bool(self.tls_ca):
            hint = "give the certificate, its key, and the certificates that sign all nodes'"
            raise InvalidInput("cluster_tls_cert", "TLS needs three files", hint)

    def contexts(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        """Make the TLS contexts for accepting and for opening connections; None without TLS.

        Both ends show a certificate that `tls_ca` signs. Names in it are not compared, since nodes
        are called by addresses that may change; any such certificate is accepted.

        Raises:
            InvalidInput: a file cannot be used.
        """
        if not self.tls_cert:
            return None, None
        made = []
        for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(purpose)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key)
                context.load_verify_locations(self.tls_ca)
            except (OSError, ssl.SSLError) as error:
                raise InvalidInput("cluster_tls_cert", f"it cannot be used: {error}") from None
            made.append(context)
        return made[0], made[1]


def parsed_address(where: str, text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``.

    Raises:
        InvalidInput: it is not that.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise InvalidInput(where, f"'{text[:80]}' is not an address", "write HOST:PORT")
    return match[1].strip("[]"), int(match[2])


def _check_name(where: str, text: str) -> None:
    """Refuse the name of a node that is the address of all networks.

    Raises:
        InvalidInput: it is.
    """
    with contextlib.suppress(ValueError):  # a host's name
        if ipaddress.ip_address(parsed_address(where, text)[0]).is_unspecified:
            hint = "give the address at which others reach this node as cluster_address"
            raise InvalidInput(where, f"'{text}' is the address of no single node", hint)


def cluster_settings(settings: Settings) -> ClusterSettings | None:
    """Read the part of a node's settings; None if it is in no cluster.

    Raises:
        InvalidInput: the secret is missing or cannot be read, or an address is none.
    """
    given = (settings.peers, settings.cluster, settings.cluster_listen, settings.cluster_store)
    if not any(given):
        return None
    if not settings.cluster_secret:
        hint = "name a file that all nodes have, made by 'openssl rand -hex 32'"
        raise InvalidInput("cluster_secret", "a cluster needs a secret", hint)
    try:
        secret = Path(settings.cluster_secret).read_bytes().strip()
    except OSError as error:
        raise InvalidInput("cluster_secret", f"{error.filename}: {error.strerror}") from None
    return ClusterSettings(
        settings.cluster_listen or "127.0.0.1:0",
        secret,
        settings.cluster_address,
        settings.peers,
        settings.cluster_tls_cert,
        settings.cluster_tls_key,
        settings.cluster_tls_ca,
        settings.cluster_store,
        settings.options,
        CopyLimits(settings.cluster_copies_number, settings.cluster_copies_bytes),
    )
