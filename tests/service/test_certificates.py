"""Both ports with real TLS: what they show, how certificates rotate, who must show one."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading

import grpc
import httpx
import pytest
from certificates import Authority
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from planner_client import CALL_SECONDS
from running_planner import planner_process, running_planner
from scraped import samples_of

from taot_service.certificate_dates import read_expiry
from taot_service.config import ServiceConfig
from taot_service.kept_file import UnusableFileError
from taot_service.server import PlannerServer
from taot_service.tls import CertificateKeeper


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def folder(tmp_path, authority):
    authority.write(tmp_path)
    authority.issue("first").write(tmp_path)
    return tmp_path


def tls_config(folder, **fields) -> ServiceConfig:
    return ServiceConfig(tls_cert=folder / "server.crt", tls_key=folder / "server.key", **fields)


def shown_name(port: int, folder, *, alpn: str, server_name: str | None = "localhost") -> str:
    """The name in the certificate that a port shows to a new connection, checked against the authority."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.check_hostname = server_name is not None
    context.set_alpn_protocols([alpn])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=CALL_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as secure,
    ):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True)).subject.rfc4514_string()


@contextlib.contextmanager
def health_of(port: int, folder, **pair: bytes):
    """Asks the gRPC port for its health over one connection."""
    credentials = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes(), **pair)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        yield lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS).status


@contextlib.contextmanager
def https(port: int, folder):
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    with httpx.Client(
        base_url=f"https://127.0.0.1:{port}", verify=context, timeout=CALL_SECONDS, trust_env=False
    ) as client:
        yield client


def test_certificates_rotate_on_both_ports_under_open_connections(folder, authority, caplog):
    caplog.set_level(logging.INFO, logger="taot_service")
    with (
        running_planner(tls_config(folder), is_warm_awaited=False) as planner,
        health_of(planner.grpc_port, folder) as old_health,
        https(planner.http_port, folder) as old_http,
    ):
        ports = {planner.grpc_port: "h2", planner.http_port: "http/1.1"}
        for port, alpn in ports.items():
            assert shown_name(port, folder, alpn=alpn) == "CN=first"
        old_health()
        with old_http.stream("GET", "/v1/events") as stream:  # open over the whole rotation
            lines = stream.iter_lines()
            assert next(lines) == "event: sessions"
            second = authority.issue("second", days=60)
            second.write(folder)
            planner.on_loop(planner.locks.refresh)
            for port, alpn in ports.items():
                assert shown_name(port, folder, alpn=alpn) == "CN=second"
                assert shown_name(port, folder, alpn=alpn, server_name=None) == "CN=second"
            # A new file that is none leaves the last one in force, is logged once and shown to alerts.
            (folder / "server.crt").write_text("rubbish")
            for _ in range(3):
                planner.on_loop(planner.locks.refresh)
            assert [record.levelname for record in caplog.records].count("ERROR") == 1
            for port, alpn in ports.items():
                assert shown_name(port, folder, alpn=alpn) == "CN=second"
            old_health()
            next(lines)
        with https(planner.http_port, folder) as http:
            samples = samples_of(http)
        assert samples["taot_refused_files", ()] == 1
        assert samples["taot_certificate_expiry_timestamp_seconds", ()] == second.end.timestamp()
        # The key of another certificate is no better.
        third = authority.issue("third")
        (folder / "server.crt").write_bytes(third.certificate)
        planner.on_loop(planner.locks.refresh)
        assert shown_name(planner.grpc_port, folder, alpn="h2") == "CN=second"
        (folder / "server.key").write_bytes(third.key)
        planner.on_loop(planner.locks.refresh)
        for port, alpn in ports.items():
            assert shown_name(port, folder, alpn=alpn) == "CN=third"
        with https(planner.http_port, folder) as http:
            assert samples_of(http)["taot_refused_files", ()] == 0
        old_health()


def test_a_planner_process_follows_a_link_that_is_switched(folder, authority, tmp_path):
    """As Kubernetes rotates the files of a Secret: by a link to another folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        authority.issue(name).write(tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to("one")
    flags = ("--tls-cert", str(link / "server.crt"), "--tls-key", str(link / "server.key"))
    with planner_process(flags=flags, is_warm_awaited=False) as planner:
        assert shown_name(planner.http_port, folder, alpn="http/1.1") == "CN=one"
        other = tmp_path / "other"
        other.symlink_to("two")
        os.replace(other, link)
        bound = threading.Event()
        timer = threading.Timer(CALL_SECONDS, bound.set)
        timer.start()
        for port, alpn in ((planner.grpc_port, "h2"), (planner.http_port, "http/1.1")):
            while shown_name(port, folder, alpn=alpn) != "CN=two":
                assert not bound.is_set(), "the new certificate is not in force"
        timer.cancel()


def test_grpc_callers_need_a_certificate_where_authorities_are_named_and_probes_do_not(folder, authority):
    config = tls_config(folder, tls_client_ca=folder / "ca.crt")
    agent, stranger = authority.issue("agent"), Authority("stranger").issue("agent")
    with running_planner(config, is_warm_awaited=False) as planner:
        pair = {"private_key": agent.key, "certificate_chain": agent.certificate}
        with health_of(planner.grpc_port, folder, **pair) as health:
            assert health() in (health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING)
        others = ({}, {"private_key": stranger.key, "certificate_chain": stranger.certificate})
        for other in others:
            with health_of(planner.grpc_port, folder, **other) as health, pytest.raises(grpc.RpcError) as caught:
                health()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with https(planner.http_port, folder) as http:
            assert http.get("/livez").text == "ok\n"


def test_plain_text_gets_no_answer_from_ports_with_tls(folder):
    with running_planner(tls_config(folder), is_warm_awaited=False) as planner:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{planner.http_port}/livez", timeout=CALL_SECONDS, trust_env=False)
        with grpc.insecure_channel(f"127.0.0.1:{planner.grpc_port}") as channel, pytest.raises(grpc.RpcError):
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_tls_is_refused(folder, version):
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with running_planner(tls_config(folder), is_warm_awaited=False) as planner:
        for port in (planner.grpc_port, planner.http_port):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=CALL_SECONDS) as plain,
                pytest.raises((ssl.SSLError, ConnectionError)),
            ):
                context.wrap_socket(plain, server_hostname="localhost")


def test_a_certificate_that_cannot_be_used_ends_the_start_with_its_cause(folder, authority):
    authority.issue(password=b"secret").write(folder, "locked")
    for certificate, key in (("absent.crt", "server.key"), ("ca.crt", "server.key"), ("locked.crt", "locked.key")):
        config = ServiceConfig(tls_cert=folder / certificate, tls_key=folder / key)
        with pytest.raises(UnusableFileError, match=f"^cannot use the certificate in .*{certificate}"):
            PlannerServer(config)


def test_files_that_are_being_written_are_read_the_next_time(folder, authority, caplog):
    keeper = CertificateKeeper(certificate=folder / "server.crt", key=folder / "server.key", client_ca=None)
    first = keeper.file.value
    read = keeper.file._read

    def read_while_written(contents):
        value = read(contents)
        authority.issue("later").write(folder)
        return value

    authority.issue("second").write(folder)
    keeper.file._read = read_while_written
    assert not keeper.file.refresh()
    assert keeper.file.value is first
    keeper.file._read = read
    assert keeper.file.refresh()
    assert not keeper.file.is_refused


def test_a_rotation_seen_half_done_is_no_error_and_one_left_half_done_is(folder, authority, caplog):
    keeper = CertificateKeeper(certificate=folder / "server.crt", key=folder / "server.key", client_ca=None)
    for _ in range(2):
        first, second = keeper.file.value, authority.issue("second")
        (folder / "server.crt").write_bytes(second.certificate)
        assert not keeper.file.refresh()
        assert (keeper.file.is_refused, keeper.file.value, caplog.records) == (False, first, [])
        (folder / "server.key").write_bytes(second.key)
        assert keeper.file.refresh()
    (folder / "server.crt").write_bytes(authority.issue("third").certificate)
    for _ in range(3):
        assert not keeper.file.refresh()
    assert keeper.file.is_refused
    assert len(caplog.records) == 1


@pytest.mark.parametrize("days", [1, 30, 365 * 40])  # years with two and with four digits
def test_the_end_of_a_certificate_is_read_from_its_bytes(authority, days):
    issued = authority.issue(days=days)
    assert read_expiry((issued.certificate + authority.certificate).decode()) == issued.end


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_end(text):
    with pytest.raises(ValueError, match="certificate"):
        read_expiry(text)
