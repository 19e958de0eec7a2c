"""The doctor finds what would stop a deployment: each check is shown a sound case and broken ones.

Certificates, keys, ports and servers are real; the servers listen on 127.0.0.1 alone.
"""

import contextlib
import datetime
import http.server
import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import ModuleType

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedlada.cli import main
from fedlada.flower.doctor import machine, network
from fedlada.flower.loopback.certificates import write_node_key
from fedlada.flower.loopback.processes import free_port
from places import ROOT

NOW = datetime.datetime.now(datetime.UTC)
MODEL = """
from torch import nn

def model():
    return nn.Linear(4, 3)

def wider():
    return nn.Linear(5, 3)

def broken():
    raise OSError("no data here")

def needy(size):
    return nn.Linear(size, 3)

text = "not a model"
whole = nn.Linear(4, 3)
"""


def days(number: float) -> datetime.datetime:
    return NOW + datetime.timedelta(days=number)


class Party:
    """An authority, and a server's files that it signed."""

    def __init__(self, directory: Path, *names: str, **settings) -> None:
        directory.mkdir()
        self.ca, self.cert, self.key = (directory / n for n in ("ca.crt", "server.pem", "key"))
        authority = trustme.CA()
        issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")), **settings)
        authority.cert_pem.write_to_path(self.ca)
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)


@pytest.fixture(scope="module")
def party(tmp_path_factory) -> Party:
    return Party(tmp_path_factory.mktemp("party") / "sound")


@pytest.fixture
def doctor(capsys):
    """Runs the command; returns its exit code, and the findings of each check as state and text."""

    def run(*words: object) -> tuple[int, dict[str, list[tuple[str, str]]]]:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "--json", *map(str, words)])
        code = ended.value.code
        told = json.loads(capsys.readouterr().out)
        assert told["ok"] == (code == 0)
        found: dict[str, list[tuple[str, str]]] = {}
        for each in told["checks"]:
            found.setdefault(each["check"], []).append((each["state"], each["text"]))
        return code, found

    return run


def only(found: dict[str, list[tuple[str, str]]], check: str) -> tuple[str, str]:
    (finding,) = found[check]
    return finding


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink does, or as its server says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status = self.server.answers.get(self.path, 404)
        self.send_response_only(status)
        if self.server.late is not None:
            self.send_header("Date", formatdate(time.time() + self.server.late, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(
    party: Party | None, *, late: float | None = 0.0, health: int = 200, control: int = 405
) -> Iterator[str]:
    """A server on 127.0.0.1, over TLS unless there is no party, whose clock is late."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.answers = {"/health": health, "/v1/control/list-runs": control}
        server.late = late
        server.handle_error = lambda *_: None  # clients that do not trust it hang up
        if party is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(party.cert, party.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_versions_here_are_supported_and_need_no_option(doctor):
    code, found = doctor()
    assert code == 0
    assert [text.split()[0] for _, text in found["version"]] == [
        *("python", "fedlada", "torch", "flwr")
    ]


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ({"python": "3.9.1"}, "python 3.9.1 is not supported: install python >=3.11"),
        ({"torch": "1.13.0"}, "torch 1.13.0 is not supported"),
        ({"flwr": "0.9"}, "flwr 0.9 is not supported"),
    ],
)
def test_an_unsupported_version_is_a_problem(doctor, monkeypatch, there, text):
    found = machine.versions() | there
    monkeypatch.setattr(machine, "versions", lambda: found)
    code, found = doctor()
    assert code == 1
    assert [text in told for state, told in found["version"] if state == "problem"] == [True]


def test_a_missing_package_is_a_problem(doctor, monkeypatch):
    monkeypatch.setattr(machine, "versions", lambda: {"python": "3.11.2", "torch": "2.13.0"})
    code, found = doctor()
    assert code == 1
    assert [text.split()[0] for state, text in found["version"] if state == "problem"] == [
        *("fedlada", "flwr")
    ]


def test_sound_certificates_are_ok(doctor, party):
    code, found = doctor(
        *("--root-certificates", party.ca, "--superlink", "localhost:1", "--offline"),
        *("--ssl-certfile", party.cert, "--ssl-keyfile", party.key),
    )
    assert code == 0
    assert only(found, "authority")[0] == only(found, "server certificate")[0] == "ok"


BROKEN = {
    "expired": ({"not_before": days(-9), "not_after": days(-1)}, "certificate has expired"),
    "early": ({"not_before": days(2), "not_after": days(9)}, "not yet valid"),
    "elsewhere": ("flower.example.org", "flower.example.org"),
}


@pytest.mark.parametrize("case", ["expired", "early"])
def test_a_certificate_outside_its_dates_is_a_problem(doctor, tmp_path, case):
    settings, text = BROKEN[case]
    party = Party(tmp_path / "party", **settings)
    code, found = doctor(
        *("--root-certificates", party.ca, "--superlink", "localhost:1", "--offline"),
        *("--ssl-certfile", party.cert, "--ssl-keyfile", party.key),
    )
    state, told = only(found, "server certificate")
    assert (code, state) == (1, "problem")
    assert text in told
    assert "get a new certificate, or set the clock" in told


def test_a_certificate_that_ends_soon_is_a_warning(doctor, tmp_path):
    party = Party(tmp_path / "party", not_after=days(7))
    words = ["--root-certificates", party.ca, "--superlink", "localhost:1", "--offline"]
    words += ["--ssl-certfile", party.cert, "--ssl-keyfile", party.key]
    code, found = doctor(*words)
    assert (code, only(found, "server certificate")[0]) == (0, "warning")
    _, found = doctor(*words, "--days", 3)
    assert only(found, "server certificate")[0] == "ok"


def test_a_certificate_of_another_host_authority_or_key_is_a_problem(doctor, party, tmp_path):
    other = Party(tmp_path / "other")
    cases = [
        (("flower.example.org", party.ca, party.cert, party.key), "names flower.example.org"),
        (("localhost", other.ca, party.cert, party.key), "not signed by this authority"),
        (("localhost", party.ca, party.cert, other.key), "the key is that of another"),
        (("localhost", party.ca, tmp_path / "none", party.key), "cannot be read (No such file"),
    ]
    for (host, ca, cert, key), text in cases:
        code, found = doctor(
            *("--root-certificates", ca, "--superlink", f"{host}:1", "--offline"),
            *("--ssl-certfile", cert, "--ssl-keyfile", key),
        )
        state, told = only(found, "server certificate")
        assert (code, state) == (1, "problem"), told
        assert text in told


def test_a_file_that_is_no_authority_is_a_problem_and_ends_what_depends_on_it(
    doctor, party, tmp_path
):
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "none", tmp_path / "text", party.cert):
        code, found = doctor("--root-certificates", path, "--superlink", "127.0.0.1:1")
        assert (code, only(found, "authority")[0]) == (1, "problem")
        assert "connection" not in found


def test_a_superlink_that_answers_is_ok(doctor, party):
    with serving(party) as address:
        code, found = doctor("--root-certificates", party.ca, "--superlink", address)
    assert code == 0
    for check in ("connection", "health", "clock", "control"):
        assert only(found, check)[0] == "ok", found[check]


def test_what_stops_a_connection_is_a_problem(doctor, party, tmp_path):
    other = Party(tmp_path / "other")
    elsewhere = Party(tmp_path / "elsewhere", "flower.example.org")
    with serving(party) as sound, serving(None) as plain, serving(elsewhere) as named:
        cases = [
            (f"127.0.0.1:{free_port()}", party.ca, "no program listens there"),
            ("nowhere.invalid:1", party.ca, "nowhere.invalid is not known here"),
            ("127.0.0.1", party.ca, "is no address; give host:port"),
            ("127.0.0.1:none", party.ca, "is no address; give host:port"),
            (sound, other.ca, "not signed by this authority"),
            (named, elsewhere.ca, "connect by a name in the certificate"),
            (plain, party.ca, "does not use TLS"),
        ]
        for address, ca, text in cases:
            code, found = doctor("--root-certificates", ca, "--superlink", address)
            state, told = only(found, "connection")
            assert (code, state) == (1, "problem"), told
            assert text in told


def test_silence_is_a_problem(doctor, party, monkeypatch):
    monkeypatch.setattr(network, "WAIT", 0.2)
    with contextlib.closing(network.socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, found = doctor("--root-certificates", party.ca, "--superlink", address)
    assert code == 1
    assert "no answer within 0.2 s" in only(found, "connection")[1]


def test_a_superlink_that_is_not_well_is_a_problem(doctor, party):
    with serving(party, health=502) as address:
        code, found = doctor("--root-certificates", party.ca, "--superlink", address)
    assert (code, only(found, "health")[0]) == (1, "problem")
    assert "status 502" in only(found, "health")[1]


@pytest.mark.parametrize(
    ("late", "state"),
    [
        *((2.0, "ok"), (-2.0, "ok"), (-60.0, "problem"), (200.0, "ok"), (400.0, "problem")),
        *((305.0, "warning"), (None, "warning")),
    ],
)
def test_clocks_may_differ_as_far_as_a_superlink_accepts(doctor, party, late, state):
    """A server that is late by -60 s is early: the clock here is ahead of it."""
    with serving(party, late=late) as address:
        code, found = doctor("--root-certificates", party.ca, "--superlink", address)
    assert (code, only(found, "clock")[0]) == (int(state == "problem"), state)


def test_the_limits_of_the_clock_are_flowers():
    assert network.AHEAD == SYSTEM_TIME_TOLERANCE
    assert network.BEHIND == TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE


@pytest.mark.parametrize("control", [403, 405])
@pytest.mark.parametrize("node", [False, True])
def test_the_control_api_should_answer_operators_alone(doctor, party, tmp_path, node, control):
    write_node_key(tmp_path / "node")
    words = ["--auth-supernode-private-key", tmp_path / "node"] if node else []
    with serving(party, control=control) as address:
        code, found = doctor("--root-certificates", party.ca, "--superlink", address, *words)
    assert code == 0
    assert only(found, "control")[0] == ("ok" if node == (control == 403) else "warning")


def test_a_private_key_of_the_right_kind_is_ok(doctor, tmp_path):
    write_node_key(tmp_path / "node")
    code, found = doctor("--auth-supernode-private-key", tmp_path / "node")
    assert code == 0
    assert [state for state, _ in found["key"]] == ["ok", "ok"]


def test_a_key_that_others_can_read_or_that_is_none_is_a_problem(doctor, tmp_path):
    write_node_key(tmp_path / "open")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "text").write_text("hello")
    kinds = {"rsa": rsa.generate_private_key(65537, 2048)}
    kinds["p256"] = ec.generate_private_key(ec.SECP256R1())
    for name, key in kinds.items():
        (tmp_path / name).write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        )
    for path in tmp_path.iterdir():
        if path.name != "open":
            path.chmod(0o600)
    cases = {"open": "chmod 600", "text": "ssh-keygen", "rsa": "P-384", "p256": "P-384"}
    cases["none"] = "cannot be read (No such file"
    for name, text in cases.items():
        code, found = doctor("--auth-supernode-private-key", tmp_path / name)
        assert code == 1
        assert [text in told for state, told in found["key"] if state == "problem"] == [True]


def test_directories_must_be_writable_and_have_room(doctor, tmp_path):
    (tmp_path / "file").touch()
    code, found = doctor("--directory", tmp_path, tmp_path / "new", "--free", 1e-9)
    assert code == 0
    assert ["can be written" in found["disk"][0][1], "can be created" in found["disk"][1][1]] == [
        *(True, True)
    ]
    assert not (tmp_path / "new").exists()
    for path, free, text in (
        (tmp_path / "file" / "below", 1e-9, "cannot be written"),
        (tmp_path, 1e9, "free disk space"),
    ):
        code, found = doctor("--directory", path, "--free", free)
        assert (code, only(found, "disk")[0]) == (1, "problem")
        assert text in only(found, "disk")[1]


def test_a_port_that_is_taken_or_not_ours_is_a_problem(doctor):
    code, found = doctor("--listen", f"127.0.0.1:{free_port()}")
    assert (code, only(found, "port")[0]) == (0, "ok")
    with contextlib.closing(network.socket.create_server(("127.0.0.1", 0))) as busy:
        taken = f"127.0.0.1:{busy.getsockname()[1]}"
        for address in (taken, "192.0.2.1:9190", "9190"):
            code, found = doctor("--listen", address)
            assert (code, only(found, "port")[0]) == (1, "problem")


@pytest.fixture
def app(tmp_path) -> Iterator[Path]:
    directory = tmp_path / "app"
    directory.mkdir()
    (directory / "task_of_doctor.py").write_text(MODEL)
    yield directory
    sys.modules.pop("task_of_doctor", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(directory)]


def test_the_model_of_the_server_is_recognised_and_another_is_not(doctor, app, tmp_path):
    file, name = tmp_path / "server.json", "task_of_doctor:model"
    code, written = doctor("--app", app, "--model", name, "--write", file)
    assert code == 0
    code, found = doctor("--app", app, "--model", name, "--expect", file)
    assert code == 0
    assert only(found, "model")[1] == only(written, "model")[1] + ", as on the server"
    assert [state for state, _ in found["server's version"]] == ["ok"] * len(machine.versions())
    code, found = doctor("--app", app, "--model", "task_of_doctor:wider", "--expect", file)
    assert (code, only(found, "model")[0]) == (1, "problem")
    assert (
        "weight (float32 [3, 4]) where this client's has weight (float32 [3, 5])"
        in (only(found, "model")[1])
    )


def test_a_model_may_be_a_module_itself(doctor, app):
    code, _ = doctor("--app", app, "--model", "task_of_doctor:whole")
    assert code == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("task_of_doctor:nothing", "write it as 'package.module:NAME'"),
        ("no_such_module:model", "write it as 'package.module:NAME'"),
        ("task_of_doctor:broken", "cannot be built without arguments (OSError: no data here)"),
        ("task_of_doctor:needy", "cannot be built without arguments (TypeError"),
        ("task_of_doctor:text", "is a str, not a torch.nn.Module"),
    ],
)
def test_a_model_that_cannot_be_built_is_a_problem(doctor, app, name, text):
    code, found = doctor("--app", app, "--model", name)
    assert (code, only(found, "model")[0]) == (1, "problem")
    assert text in only(found, "model")[1]


DRY = ("--app", ROOT / "examples/flower", "--model", "digits.task:model")


@pytest.fixture
def _digits() -> Iterator[None]:
    """The app's package, which has the name of a module of the tests."""
    others = _without_digits()
    yield
    _without_digits()
    sys.modules.update(others)
    sys.path[:] = [entry for entry in sys.path if entry != str(ROOT / "examples/flower")]


def _without_digits() -> dict[str, ModuleType]:
    """Forget the modules of that name, and return them."""
    names = [name for name in sys.modules if name.split(".")[0] == "digits"]
    return {name: sys.modules.pop(name) for name in names}


@pytest.mark.usefixtures("_digits")
def test_a_dry_run_trains_on_the_nodes_own_data_and_leaves_nothing(doctor, tmp_path):
    node = f'partition-id=3 num-partitions=10 state-directory="{tmp_path}/state"'
    code, found = doctor(*DRY, "--dry-run", node)
    assert (code, only(found, "dry run")[0]) == (0, "ok"), found
    assert "20 steps" in only(found, "dry run")[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_digits")
@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("partition-id=10 num-partitions=10", "numbered from 0 to 9"),
        ("partition-id=0", "no number as num-partitions"),
        ("partition-id=a", "is no node config"),
    ],
)
def test_a_node_that_cannot_take_part_is_found_by_a_dry_run(doctor, node, text):
    code, found = doctor(*DRY, "--dry-run", node)
    assert (code, only(found, "dry run")[0]) == (1, "problem")
    assert text in only(found, "dry run")[1]


def test_a_dry_run_shows_the_error_of_the_loader(doctor, app):
    """The ClientApp of an app whose data are not there."""
    (app / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nclientapp = "client_of_doctor:app"\n'
    )
    (app / "client_of_doctor.py").write_text(
        "from fedlada import LocalTraining\nfrom fedlada.flower import client_app\n"
        "from task_of_doctor import model\n"
        "def data(context):\n    return open('/no/such/hospital.csv')\n"
        "app = client_app(model, data, LocalTraining())\n"
    )
    words = ("--app", app, "--model", "task_of_doctor:model")
    code, found = doctor(*words, "--dry-run", "partition-id=0 num-partitions=2")
    sys.modules.pop("client_of_doctor")
    assert (code, only(found, "dry run")[0]) == (1, "problem")
    assert "/no/such/hospital.csv" in only(found, "dry run")[1]
    (app / "pyproject.toml").unlink()
    code, found = doctor(*words, "--dry-run", "partition-id=0 num-partitions=2")
    assert "describes no Flower app" in only(found, "dry run")[1]


def test_other_versions_than_the_servers_are_told_apart(doctor, app, tmp_path):
    file = tmp_path / "server.json"
    doctor("--app", app, "--model", "task_of_doctor:model", "--write", file)
    told = json.loads(file.read_text())
    for name, state in (("fedlada", "problem"), ("flwr", "problem"), ("torch", "warning")):
        other = told | {"versions": told["versions"] | {name: "0.0.1"}}
        file.write_text(json.dumps(other))
        code, found = doctor("--expect", file)
        assert code == int(state == "problem")
        odd = [text for each, text in found["server's version"] if each == state]
        assert len(odd) == 1
        assert "0.0.1 on the server" in odd[0]


@pytest.mark.parametrize("content", [None, "", "[]", '{"versions": 1}', "{}"])
def test_a_file_that_no_server_wrote_is_a_problem(doctor, tmp_path, content):
    if content is not None:
        (tmp_path / "server.json").write_text(content)
    code, found = doctor("--expect", tmp_path / "server.json")
    assert code == 1
    assert "get it from the server" in only(found, "doctor")[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--superlink", "a:1"], "--superlink needs --root-certificates, too"),
        (["--write", "f"], "--write needs --model, too"),
        (["--ssl-certfile", "f"], "needs --ssl-keyfile and --root-certificates and --superlink"),
    ],
)
def test_options_that_need_others_say_so(words, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_help_has_an_example_and_lines_are_for_people(capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert "fedlada doctor --superlink" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok       version") for line in lines)
