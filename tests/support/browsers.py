"""Opens pages in headless Chromium, and records whatever they ask for.

A page is served by a server of this process on loopback that writes down every path it
is asked for, and the browser writes down every request that it makes, also those that
never leave it.
"""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--hide-scrollbars",
)
_TIMEOUT = 300
_PIXEL = bytes.fromhex(
    "47494638396101000100800000ffffff00000021f90401000000002c00000000010001000002024401003b"
)


def chromium():
    """Return the browser's command, or ``None`` if this machine has none."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


@dataclass(frozen=True)
class Visit:
    """What happened when a page was opened."""

    dom: str  # the document after it was loaded
    served: list  # paths that the server was asked for, the page's own left out
    requested: list  # addresses that pages began to request, the page's own left out


@contextmanager
def serving(pages):
    """Serve pages by their path, and yield the server's address and the list of paths asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            page = pages.get(self.path)
            body = _PIXEL if page is None else page.encode()
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/html" if page is not None else "image/gif"
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # a browser that is done does not wait
                self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_browser(address, *options):
    """Run the browser on an address, in a profile of its own, and return what it printed."""
    with tempfile.TemporaryDirectory(
        prefix="browser-", ignore_cleanup_errors=True
    ) as profile:
        done = subprocess.run(
            [chromium(), *OPTIONS, f"--user-data-dir={profile}", *options, address],
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
    return done.stdout.decode("utf-8")


def visit(pages, path="/"):
    """Open one of the pages and return the document and every request but that for the page.

    ``{here}`` in a page stands for the address of the server, which every page may ask.
    """
    with tempfile.TemporaryDirectory(prefix="browser-log-") as directory:
        log = Path(directory) / "net.json"
        served = {}
        with serving(served) as (here, asked):
            served |= {
                name: page.replace("{here}", here) for name, page in pages.items()
            }
            dom = run_browser(here + path, "--dump-dom", f"--log-net-log={log}")
        requested = [url for url in requests_of(log, here) if url != here + path]
    paths = list(asked)
    paths.remove(path)  # asked for once; a second time counts
    return Visit(dom, paths, requested)


def requests_of(log, here):
    """Return the addresses that the browser's log says pages asked for.

    The browser's own requests, for updates and the like, have no page that initiated
    them.
    """
    logged = json.loads(log.read_text("utf-8"))
    kinds = {
        number: name for name, number in logged["constants"]["logEventTypes"].items()
    }
    found = []
    for event in logged["events"]:
        if kinds.get(event["type"]) == "URL_REQUEST_START_JOB":
            given = event.get("params", {})
            address, initiator = given.get("url", ""), given.get("initiator", "")
            if (
                initiator.startswith("http")
                or urlsplit(address).netloc == urlsplit(here).netloc
            ):
                found.append(address)
    return found


def screenshot(page, path, width, height, *, dark=False):
    """Write a picture of a page, in a frame of that width: windows cannot be narrower than 500."""
    frame = (
        "<!doctype html><body style='margin:0'><iframe src='/page' style='border:0;"
        f"width:{width}px;height:{height}px'></iframe>"
    )
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with serving({"/": frame, "/page": page}) as (here, _):
        size = f"--window-size={max(width, 520)},{height}"
        run_browser(here + "/", f"--screenshot={path}", size, *scheme)


_MEASURE = """<!doctype html><title>measure</title><iframe id="frame" src="/page"
style="border:0;width:%dpx;height:%dpx"></iframe><pre id="found"></pre><script>
document.getElementById("frame").addEventListener("load", event => {
  const page = event.target.contentDocument, root = page.documentElement;
  const sized = name => [...page.querySelectorAll(name)].map(each => {
    const box = each.getBoundingClientRect();
    return {id: each.id, width: box.width, height: box.height, left: box.left, right: box.right};
  });
  const text = JSON.stringify({
    width: root.clientWidth, scroll: root.scrollWidth,
    ink: getComputedStyle(page.body).color, paper: getComputedStyle(page.body).backgroundColor,
    section: sized("section"), svg: sized("svg"), table: sized("table"), text: sized("svg text"),
    label: sized("svg.columns g text:nth-of-type(1)"),
    value: sized("svg.columns g text:nth-of-type(2)"),
    guide: sized("svg.columns path.grid"),
  });
  document.getElementById("found").textContent = btoa(unescape(encodeURIComponent(text)));
});
</script>"""


def measure(page, width, height=900, *, dark=False):
    """Return the sizes of a page's sections, drawings and tables in a frame of that width."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with serving({"/": _MEASURE % (width, height), "/page": page}) as (here, _):
        dom = run_browser(here + "/", "--dump-dom", *scheme)
    (found,) = re.findall(r'<pre id="found">([\w+/=]+)</pre>', dom)
    return json.loads(base64.b64decode(found))
