"""What a client states of its software."""

import re

import msgspec
import pytest
from cryptography.hazmat.backends.openssl import backend

from flower_kmeans import version
from flower_kmeans.protocol.messages import Software
from flower_kmeans.report import report as reports

pytestmark = pytest.mark.claim("reading-a-report", "run-lists-parameters-runs")


@pytest.mark.parametrize(
    ("text", "stated", "numbers"),
    [
        ("OpenSSL 3.5.4 30 Sep 2025", "OpenSSL 3.5.4", {"OpenSSL": "3.5.4"}),
        ("LibreSSL 4.2.1", "LibreSSL 4.2.1", {"LibreSSL": "4.2.1"}),
        ("BoringSSL", "BoringSSL", {"BoringSSL": "unknown"}),
        (
            "OpenSSL 3.0.0~beta(x) now",
            "OpenSSL 3.0.0betax",
            {"OpenSSL": "3.0.0~beta(x)"},
        ),
        ("AWS-LC " + "9" * 80, None, {"AWS-LC": "9" * 80}),
    ],
)
def test_the_library_that_encrypts_is_stated(text, stated, numbers, monkeypatch):
    monkeypatch.setattr(backend, "openssl_version_text", lambda: text)
    found = version.stated_software("TenSEAL 0.3.18")
    if stated is not None:
        assert found == f"flower-kmeans {version.__version__} {stated} TenSEAL 0.3.18"
    assert msgspec.convert(found, Software) == found  # it fits into a message
    assert numbers.items() <= reports.versions().items()


def test_versions_name_no_package_that_is_not_there(monkeypatch):
    installed = version.metadata.version

    def without(name):
        if name == "tenseal":
            raise version.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(version.metadata, "version", without)
    assert "tenseal" not in reports.versions()
    assert re.fullmatch(r"\d+\.\d+.*", reports.versions()["cryptography"])
