"""The files of examples/deployment are what the documents say: closed by default, and current.

The programs there are run by hand where nginx, Prometheus and podman are, and their results are
kept beside them; here is what needs none of these.
"""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedlada.flower.loopback.certificates import ServerCertificate
from fedlada.flower.loopback.deployment import superlink_command
from fedlada.flower.loopback.supernodes import supernode_command
from places import ROOT

HERE = ROOT / "examples" / "deployment"
NGINX = (HERE / "nginx.conf").read_text()
COMMON = (HERE / "Containerfile").read_text()
IMAGES = {name: (HERE / f"{name}.Containerfile").read_text() for name in ("superlink", "supernode")}
COMPOSE = yaml.safe_load((HERE / "compose.yaml").read_text())


def handled(path: str) -> str:
    """What nginx does with a path: the body of the location that it chooses."""
    locations = re.findall(r"location (= )?(\S+) \{(.*?)\n        \}", NGINX, re.DOTALL)
    exact = [body for equals, prefix, body in locations if equals and prefix == path]
    if exact:
        return exact[0]
    fitting = [
        (len(prefix), body)
        for equals, prefix, body in locations
        if not equals and path.startswith(prefix)
    ]
    return max(fitting)[1]


def test_the_proxy_lets_nodes_reach_the_fleet_api_and_health_and_nothing_else():
    found = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert {path.split("/")[2] for path in found} >= {"control", "fleet", "runtime"}
    for path in found | {"/health", "/", "/docs", "/openapi.json"}:
        wanted = path.startswith("/v1/fleet/") or path == "/health"
        assert ("proxy_pass https://superlink" in handled(path)) == wanted, path
        assert ("return 403" in handled(path)) != wanted, path


def test_the_proxy_caps_uploads_and_checks_whom_it_talks_to():
    directives = dict(re.findall(r"^\s*(\w+) ([^;{]+);", NGINX, re.MULTILINE))
    assert re.fullmatch(r"\d+m", directives["client_max_body_size"])
    assert directives["proxy_ssl_verify"] == "on"
    assert "limit_conn" in directives
    assert re.findall(r"listen .*", NGINX) == ["listen 0.0.0.0:8443 ssl;"]


def test_what_the_proxy_script_replaces_is_in_the_configuration(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    script = runpy.run_path(str(HERE / "proxy.py"))
    text = script["configuration"](
        tmp_path / "keys", tmp_path, public="127.0.0.1:20001", superlink="127.0.0.1:20002"
    )
    assert f"ssl_certificate {tmp_path}/keys/server.pem;" in text
    for place in ("0.0.0.0", "/etc/", "/var/", "/run/"):
        assert place not in text, f"{place} of a real machine is left"
    assert script["LIMIT"] == 2**20 * int(re.search(r"max_body_size (\d+)m", text)[1])


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_as_nobody_special_and_says_how_it_is(name):
    *_, last = COMMON.split("FROM")
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert "USER" not in IMAGES[name]
    assert re.search(r"^HEALTHCHECK .*health\.py", IMAGES[name], re.MULTILINE)
    assert f'ENTRYPOINT ["flower-{name}"]' in IMAGES[name]


def test_what_the_images_copy_is_no_secret():
    text = COMMON + "".join(IMAGES.values())
    copied = re.findall(r"^(?:COPY|ADD) (.*)$", text, re.MULTILINE)
    sources = [word for line in copied for word in line.split()[:-1] if "--from" not in word]
    assert set(sources) == {
        *("pyproject.toml", "README.md", "LICENSE", "src", "examples/deployment/health.py"),
        "/opt/fedlada",
    }


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_a_service_is_locked_down_and_open_on_this_machine_only(name):
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("./"))
    assert any(volume.endswith(":/var/lib/flower") for volume in service["volumes"])
    assert service["image"] == f"fedlada-{name}"


def test_the_services_use_the_options_that_the_tests_of_the_loopback_use():
    files = ServerCertificate(Path("ca.crt"), Path("server.pem"), Path("server.key"))
    tested = {
        "superlink": superlink_command(
            "127.0.0.1:1", files, ["--enable-supernode-auth", "--database", "state.db"]
        ),
        "supernode": supernode_command(
            "127.0.0.1:1", authority=Path("ca.crt"), key=Path("node"), config={"partition-id": 0}
        ),
    }
    for name, command in tested.items():
        given = {word.partition("=")[0] for word in COMPOSE["services"][name]["command"]}
        assert given == {word for word in command if word.startswith("--")}, name


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_a_unit_is_the_service_of_the_containers_without_a_container(name):
    """The SuperLink listens where the proxy looks for it, and installs nothing by itself."""
    units = re.findall(r"```ini\n(.*?)```", (ROOT / "docs/deployment.md").read_text(), re.DOTALL)
    (unit,) = [text for text in units if f"bin/flower-{name} " in text]
    command = re.search(r"ExecStart=(.*?[^\\])\n", unit, re.DOTALL)[1].replace("\\\n", " ")
    words = shlex.split(command)
    given = {word for word in words if word.startswith("--")}
    service = COMPOSE["services"][name]
    assert given == {word.partition("=")[0] for word in service["command"]}
    assert words[words.index("--host") + 1] == "127.0.0.1"
    if name == "superlink":
        address = f"127.0.0.1:{words[words.index('--port') + 1]}"
        assert re.findall(r"server (127\.0\.0\.1:\d+);", NGINX) == [address]
        assert any(port.startswith(f"{address}:") for port in service["ports"])
    set_in_image = re.search(r"FLWR_DISABLE_RUNTIME\w+=1", COMMON)[0]
    assert (set_in_image in unit) == (name == "superlink")


@pytest.mark.parametrize("script", ["proxy", "metrics", "containers"])
def test_the_result_of_each_script_is_kept_with_its_command(script):
    text = (HERE / "results" / f"{script}.txt").read_text()
    assert f"$ python examples/deployment/{script}.py" in text
    assert re.search(r"^20\d\d-\d\d-\d\d, \d+ cores", text, re.MULTILINE)
    assert "NOT " not in text
