"""TLS between nodes: who is refused, and that both nodes say why."""

from __future__ import annotations

import contextlib
import datetime
import logging
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dandelion.cluster import Cluster, ClusterSettings
from dandelion.errors import InvalidInput
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import SECRET, alive, free_addresses, settings

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates of nodes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._made(name, self.key, (-DAY, DAY), ca=True)
        self.file = self._written("ca", self.certificate)

    def _made(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        valid: tuple[datetime.timedelta, datetime.timedelta],
        ca: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, self.name)
        )
        builder = x509.CertificateBuilder(issuer, subject, key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now + valid[0]).not_valid_after(now + valid[1])
        builder = builder.add_extension(x509.BasicConstraints(ca, None), True)
        return builder.sign(self.key, hashes.SHA256())

    def _written(self, name: str, certificate: x509.Certificate) -> str:
        path = self.folder / f"{self.name}-{name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)

    def files(
        self, name: str, valid: tuple[datetime.timedelta, datetime.timedelta] = (-DAY, DAY)
    ) -> tuple[str, str]:
        """Make a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder / f"{self.name}-{name}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return self._written(name, self._made(name, key, valid)), str(path)


def member(address: str, peers: list[str], *files: str) -> Node:
    given = ClusterSettings(address, SECRET, "", tuple(peers), *files)
    return Node(settings(), cluster=Cluster(given))


def test_nodes_with_certificates_of_one_authority_are_members(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    addresses = free_addresses(2)
    one, two = (
        member(address, addresses, *authority.files(f"n{n}"), authority.file)
        for n, address in enumerate(addresses)
    )
    with one, two:
        wait_until(lambda: alive(one) == alive(two) == 1)


EXPIRED, EARLY = (-2 * DAY, -DAY), (DAY, 2 * DAY)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("wrong", "refused: unable to get local issuer certificate"),
        ("expired", "refused: certificate has expired"),
        ("early", "refused: certificate is not yet valid"),
        ("none", "does not speak TLS"),
    ],
)
def test_a_node_with_another_certificate_is_refused_and_both_say_why(
    kind: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dandelion.cluster")
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    files: tuple[str, ...] = ()
    if kind != "none":
        signed = other if kind == "wrong" else ours
        valid = {"expired": EXPIRED, "early": EARLY}.get(kind, (-DAY, DAY))
        files = (*signed.files("stranger", valid), ours.file)
    addresses = free_addresses(2)
    with (
        member(addresses[0], addresses, *ours.files("a"), ours.file) as one,
        member(addresses[1], addresses, *files) as stranger,
    ):

        def says(text: str) -> bool:
            return any(text in message for message in caplog.messages)

        wait_until(lambda: says(reason))
        hint = "it may refuse this node's certificate" if files else "has no certificates"
        wait_until(lambda: says(hint))
        assert alive(one) == alive(stranger) == 0
        assert not one.cluster().majority  # type: ignore[union-attr]


def test_a_client_without_a_certificate_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It speaks TLS and knows who signs, but has nothing to show."""
    ours = Authority(tmp_path, "ours")
    address = free_addresses(1)[0]
    with member(address, [address], *ours.files("a"), ours.file) as node:
        context = ssl.create_default_context(cafile=ours.file)
        context.check_hostname = False
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # asks for more since Python 3.13
        host, port = address.split(":")
        with (
            contextlib.suppress(ssl.SSLError, ConnectionError),
            socket.create_connection((host, int(port)), 5) as plain,
            context.wrap_socket(plain) as client,
        ):
            client.recv(10)
        wait_until(lambda: "shows no certificate" in caplog.text)
        assert alive(node) == 0


def test_files_that_do_not_fit_together_are_refused_at_the_start(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    cert, _ = ours.files("a")
    _, key = other.files("b")
    with pytest.raises(InvalidInput, match="cannot be used"):
        member("127.0.0.1:0", [], cert, key, ours.file)
    with pytest.raises(InvalidInput, match="cannot be used"):
        member("127.0.0.1:0", [], cert, str(tmp_path / "none"), ours.file)
