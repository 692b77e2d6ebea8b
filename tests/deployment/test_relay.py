"""The relay that stands in for a bad network, between two sockets of this process."""

import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress

import loopback
import pytest
from relay import Relay

PATIENCE = 30.0  # nothing here waits as long unless it fails


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


def exchange(sock, data=b"a"):
    """Send bytes, and require that they come back."""
    sock.sendall(data)
    assert read(sock, len(data)) == data


def test_bytes_and_the_end_go_through_in_order(tmp_path):
    sent = bytes(range(256)) * 2**12
    with (
        echo() as target,
        Relay(target, jitter=0.002) as between,
        connect(between.address) as sock,
    ):
        writer = threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(1)))
        writer.start()
        assert read(sock, len(sent) + 1) == sent
        writer.join()
    loopback.make_link(tmp_path, [])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with (
        echo(lambda sock: server.wrap_socket(sock, server_side=True)) as target,
        Relay(target) as between,
        client.wrap_socket(
            connect(between.address), server_hostname="127.0.0.1"
        ) as sock,
    ):
        exchange(sock, b"secret")


def test_chunks_are_late_both_ways_and_together():
    with (
        echo() as target,
        Relay(target, delay=0.2) as between,
        connect(between.address) as sock,
    ):
        begun = time.monotonic()
        for _ in range(PARTS := 50):
            sock.sendall(b"x")
            time.sleep(0.01)  # so that they are chunks of their own
        assert read(sock, PARTS) == b"x" * PARTS
        # A lower bound holds on a busy machine too. One after another they would take
        # 20 seconds.
        assert 0.4 <= time.monotonic() - begun < PARTS * 0.4


def test_silence_holds_everything_until_it_heals():
    with echo() as target, Relay(target) as between, connect(between.address) as sock:
        exchange(sock)
        between.silence()
        with connect(between.address) as later:
            for each in (sock, later):
                each.sendall(b"b")
                each.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    each.recv(1)
            between.heal()
            for each in (sock, later):
                each.settimeout(PATIENCE)
                assert read(each, 1) == b"b"


def test_a_throttled_upload_is_slow_and_one_of_rate_0_never_ends():
    sent = b"x" * 1_000
    with echo() as target, Relay(target) as between, connect(between.address) as sock:
        between.throttle(2_000)
        begun = time.monotonic()
        exchange(sock, sent)
        assert time.monotonic() - begun >= 0.4  # half a second, but for the last piece
        between.throttle(0)
        sock.sendall(b"b")
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        between.heal()
        sock.settimeout(PATIENCE)
        assert read(sock, 1) == b"b"


@pytest.mark.parametrize("silent", [False, True])
def test_a_reset_ends_all_connections_and_no_later_one(silent):
    with echo() as target, Relay(target) as between:
        socks = [connect(between.address) for _ in range(2)]
        for sock in socks:
            exchange(sock)
        if silent:
            between.silence()
        assert between.reset() == 2
        for sock in socks:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
            sock.close()
        for is_refusing in (False, True, False):
            (between.refuse if is_refusing else between.heal)()
            # On a busy machine a reset may be at the connection's begin.
            with suppress(ConnectionError), connect(between.address) as sock:
                exchange(sock)
                assert not is_refusing
                continue
            assert is_refusing


def test_nobody_behind_it_is_a_reset_and_its_end_leaves_no_listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = text(server)
    reset = pytest.raises(ConnectionResetError)
    with Relay(target) as between, reset, connect(between.address) as sock:
        sock.recv(1)
    assert not any(thread.name == "relay" for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        connect(between.address)
