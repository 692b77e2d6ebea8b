"""The relay that stands in for a bad network, between two sockets of this process."""

import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from deployments import FOLDER, load_script

PATIENCE = 30.0  # nothing here waits as long unless it fails


@pytest.fixture
def relay(monkeypatch):
    return load_script(monkeypatch, "relay").Relay


@contextmanager
def echo(wrap=lambda sock: sock):
    """Serve connections that get back what they send, until their end."""

    def answer(sock):
        try:
            with wrap(sock) as wrapped:
                while chunk := wrapped.recv(2**16):
                    wrapped.sendall(chunk)
        except OSError:  # a reset
            return

    def serve():
        while True:
            try:
                sock, _ = server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield text(server)
        server.shutdown(socket.SHUT_RDWR)


def text(server):
    """Return ``HOST:PORT`` of a listening socket."""
    host, port = server.getsockname()
    return f"{host}:{port}"


def connect(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def read(sock, size):
    """Return as many bytes, or fewer at the end of the connection."""
    parts = []
    while size and (part := sock.recv(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def is_reset(address):
    """Return whether a new connection is reset; on a busy machine, that may be at its begin."""
    try:
        with connect(address) as sock:
            sock.recv(1)
    except ConnectionResetError:
        return True
    return False


def test_bytes_and_the_end_go_through_in_order(relay):
    sent = bytes(range(256)) * 2**12
    with echo() as target, relay(target, jitter=0.002) as between, connect(between.address) as sock:
        writer = threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(1)))
        writer.start()
        assert read(sock, len(sent) + 1) == sent
        writer.join()


def test_tls_goes_through(relay, monkeypatch, tmp_path):
    load_script(monkeypatch, "credentials").make_link(tmp_path, [])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with (
        echo(lambda sock: server.wrap_socket(sock, server_side=True)) as target,
        relay(target) as between,
        client.wrap_socket(connect(between.address), server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(b"secret")
        assert read(sock, 6) == b"secret"


def test_every_chunk_is_late_both_ways(relay):
    with echo() as target, relay(target, delay=0.2) as between, connect(between.address) as sock:
        begun = time.monotonic()
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        assert time.monotonic() - begun >= 0.4  # a lower bound: it holds on a busy machine too


def test_many_chunks_are_late_together_not_one_after_another(relay):
    with echo() as target, relay(target, delay=1.0) as between, connect(between.address) as sock:
        begun = time.monotonic()
        for _ in range(PARTS := 50):
            sock.sendall(b"x")
            time.sleep(0.01)  # so that they are chunks of their own
        assert read(sock, PARTS) == b"x" * PARTS
        assert time.monotonic() - begun < PARTS  # one after another: two seconds each


def test_silence_holds_everything_until_it_heals(relay):
    with echo() as target, relay(target) as between, connect(between.address) as sock:
        sock.sendall(b"a")
        assert read(sock, 1) == b"a"
        between.silence()
        sock.sendall(b"b")
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        with connect(between.address) as later:
            later.sendall(b"c")
            later.settimeout(0.3)
            with pytest.raises(TimeoutError):
                later.recv(1)
            between.heal()
            for each, expected in ((sock, b"b"), (later, b"c")):
                each.settimeout(PATIENCE)
                assert read(each, 1) == expected


@pytest.mark.parametrize("silent", [False, True])
def test_a_reset_ends_all_connections_and_no_later_one(relay, silent):
    with echo() as target, relay(target) as between:
        socks = [connect(between.address) for _ in range(2)]
        for sock in socks:
            sock.sendall(b"a")
            assert read(sock, 1) == b"a"
        if silent:
            between.silence()
        assert between.reset() == 2
        for sock in socks:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
            sock.close()
        between.heal()
        with connect(between.address) as sock:
            sock.sendall(b"b")
            assert read(sock, 1) == b"b"
        assert between.reset() <= 1


def test_refusal_resets_old_and_new_connections_until_it_heals(relay):
    with echo() as target, relay(target) as between:
        with connect(between.address) as sock:
            sock.sendall(b"a")
            assert read(sock, 1) == b"a"
            between.refuse()
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        assert is_reset(between.address)
        between.heal()
        with connect(between.address) as sock:
            sock.sendall(b"b")
            assert read(sock, 1) == b"b"


def test_a_lifetime_ends_a_connection(relay):
    with echo() as target, relay(target, lifetime=0.2) as between:
        assert is_reset(between.address)


def test_nobody_behind_it_is_a_reset(relay):
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = text(server)
    with relay(target) as between:
        assert is_reset(between.address)


def test_an_address_in_use_is_an_error(relay):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(OSError, match="in use"),
        relay("127.0.0.1:1", text(server)),
    ):
        pytest.fail("two listen there")


def test_its_end_leaves_neither_thread_nor_listener(relay):
    with relay("127.0.0.1:1") as between:
        address = between.address
        assert any(thread.name == "relay" for thread in threading.enumerate())
    assert not any(thread.name == "relay" for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        connect(address)
    between.close()  # once more harms nobody


def test_as_a_process_it_relays_until_it_is_ended():
    with echo() as target:
        with socket.create_server(("127.0.0.1", 0)) as server:
            listen = text(server)
        words = [target, listen, "--delay", "0.01"]
        process = subprocess.Popen([sys.executable, FOLDER / "relay.py", *words])
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    sock = connect(listen)
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            with sock:
                sock.sendall(b"a")
                assert read(sock, 1) == b"a"
        finally:
            process.terminate()
            process.wait(PATIENCE)
