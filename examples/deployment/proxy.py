"""nginx in front of a deployment on this machine: nodes pass, operators' commands do not.

Run: python examples/deployment/proxy.py     (needs nginx: apt install nginx)

It starts a SuperLink and two SuperNodes that connect through nginx with nginx.conf, runs FedLADA
to the bits of the run in process, and tries what must not pass: flwr's commands, other paths, an
upload that is too large, too many connections.
"""

import http.client
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tomli_w
from same_run import ROUNDS, differences, run_config

from fedlada.flower.doctor.tls import trusting
from fedlada.flower.loopback import CONNECTION, Deployment, DeploymentError
from fedlada.flower.loopback.certificates import answers
from fedlada.flower.loopback.processes import free_port

HERE = Path(__file__).parent
APP = HERE.parent / "flower"
NODES, LIMIT = 2, 64 * 2**20


def configuration(keys: Path, work: Path, *, public: str, superlink: str) -> str:
    """nginx.conf with this machine's places instead of those that it has for a real one."""
    text = (HERE / "nginx.conf").read_text()
    for there, here in {
        "listen 0.0.0.0:8443": f"listen {public}",
        "server 127.0.0.1:8444": f"server {superlink}",
        "/etc/flower/": f"{keys}/",
        "/run/nginx.pid": f"{work}/nginx.pid",
        "/var/log/nginx/": f"{work}/",
    }.items():
        assert there in text, f"nginx.conf has no {there}"
        text = text.replace(there, here)
    return text


@contextmanager
def nginx(keys: Path, work: Path, superlink: str) -> Iterator[str]:
    """nginx on a free port, for a `with` block."""
    public = f"127.0.0.1:{free_port()}"
    work.mkdir()
    file = work / "nginx.conf"
    file.write_text(configuration(keys, work, public=public, superlink=superlink))
    command = ["nginx", "-e", str(work / "error.log"), "-c", str(file)]
    subprocess.run([*command, "-t", "-q"], check=True)
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    try:
        deadline = time.monotonic() + 10
        while not answers(public, keys / "ca.crt"):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"nginx does not answer; see {work}/error.log")
            time.sleep(0.1)
        yield public
    finally:
        process.terminate()
        process.wait(10)


def status(address: str, authority: Path, method: str, path: str, size: int | None = None) -> int:
    """The status of a request; with a size, of one that says it uploads so many bytes."""
    host, port = address.split(":")
    connection = http.client.HTTPSConnection(
        host, int(port), timeout=30, context=trusting(authority)
    )
    headers = {} if size is None else {"Content-Length": str(size)}
    try:
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def passed(address: str, authority: Path, size: int) -> int:
    """How many bytes of a chunked upload pass before the connection is cut."""
    host, port = address.split(":")
    chunk, sent = b"10000\r\n" + bytes(0x10000) + b"\r\n", 0
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        trusting(authority).wrap_socket(plain, server_hostname=host) as tls,
    ):
        head = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: {host}\r\n"
        tls.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        try:
            while sent < size:
                tls.sendall(chunk)
                sent += 0x10000
        except (OSError, ssl.SSLError):
            return sent
    return sent


def refused(deployment: Deployment, *command: str) -> str:
    """The last words of a command of flwr through the proxy, which must fail."""
    try:
        deployment.flwr(*command)
    except DeploymentError as error:
        words = [line.strip("│╭╰─╮╯ ") for line in str(error).splitlines()]
        return [line for line in words if line][-1]
    sys.exit(f"flwr {' '.join(command)} passed the proxy")


def outside(deployment: Deployment, public: str) -> str:
    """A connection of flwr's that leads through the proxy."""
    file = deployment.directory / "cli" / "config.toml"
    keys = deployment.directory / "keys"
    connection = {"address": public, "root-certificates": str(keys / "ca.crt")}
    file.write_text(file.read_text() + "\n" + tomli_w.dumps({"superlink": {"outside": connection}}))
    return "outside"


def open_connections(address: str, authority: Path, count: int) -> int:
    """How many of so many connections at once are let in."""
    host, port = address.split(":")
    request = f"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n"
    with ExitStack() as stack:
        tried = []
        for _ in range(count):
            plain = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            tls = stack.enter_context(trusting(authority).wrap_socket(plain, server_hostname=host))
            tls.sendall(request.encode())  # and never the body: nginx waits for it
            tls.settimeout(0.3)
            tried.append(tls)
        return sum(not _turned_away(tls) for tls in tried)


def _turned_away(tls: ssl.SSLSocket) -> bool:
    try:
        return b" 503 " in tls.recv(100)
    except TimeoutError:
        return False


def check(sentence: str, holds: bool) -> None:
    print(f"{'ok  ' if holds else 'NOT '} {sentence}", flush=True)
    if not holds:
        sys.exit(1)


def main() -> None:
    if shutil.which("nginx") is None:
        sys.exit("nginx is not installed; on Debian: apt install nginx")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        work = Path(name)
        deployment = stack.enter_context(Deployment(work / "deployment", nodes=NODES))
        keys = deployment.directory / "keys"
        authority = keys / "ca.crt"
        public = stack.enter_context(nginx(keys, work / "nginx", deployment.address))
        for i in range(NODES):
            deployment.stop_node(i)
            deployment.start_node(i, through=public)
        print(f"{NODES} SuperNodes connect through nginx, the SuperLink is behind it", flush=True)
        config = run_config("fedlada", nodes=NODES, save=str(work / "saved.pt"))
        deployment.run(APP, config=config)
        found = list(differences("fedlada", work / "saved.pt", nodes=NODES))
        check(f"FedLADA, {ROUNDS} rounds through nginx: the bits of the run in process", not found)

        get = status(public, authority, "GET", "/health")
        check(f"/health passes (status {get})", get == 200)
        for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/get-nodes"):
            direct = status(deployment.address, authority, "POST", path, 0)
            through = status(public, authority, "POST", path, 0)
            check(
                f"{path}: status {through} through nginx, {direct} without",
                through == 403 and direct != 403,
            )
        for path in (
            "/v1/fleet/../control/list-runs",
            "/v1/fleet/..%2fcontrol/list-runs",
            "/v1/fleet/%2e%2e/control/list-runs",
            "//v1/control/list-runs",
        ):
            through = status(public, authority, "POST", path, 0)
            check(f"{path}: status {through} through nginx", through in (400, 403, 404))
        away = outside(deployment, public)
        key = str(keys / "node-0.pub")
        for command in (
            ("list", away),
            ("run", str(APP.resolve()), away),
            ("supernode", "register", key, away),
        ):
            check(f"flwr {command[0]} through nginx fails: {refused(deployment, *command)}", True)
        deployment.flwr("list", CONNECTION)
        check("flwr list on the SuperLink's own address still works", True)

        announced = status(public, authority, "POST", "/v1/fleet/push-object", LIMIT + 1)
        check(f"an upload announced as {LIMIT + 1:,} bytes: status {announced}", announced == 413)
        sent = passed(public, authority, 8 * LIMIT)
        check(
            f"an upload without end is cut after {sent:,} bytes were sent (limit {LIMIT:,})",
            sent < 2 * LIMIT,
        )
        direct = passed(deployment.address, authority, 2 * LIMIT)
        print(f"     without nginx the SuperLink takes all {direct:,} bytes of such an upload")
        let_in = open_connections(public, authority, 40)
        check(f"of 40 connections at once from one address {let_in} are let in", let_in <= 20)
        for i in range(NODES):
            check(f"SuperNode {i} is still there", deployment.node_runs(i))
        version = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip()
        print(f"{version}; all of it took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
