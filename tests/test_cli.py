"""The command ``fedlada``: its table of subcommands, its help and its errors."""

import subprocess
import sys
from importlib import import_module
from types import ModuleType
from urllib.error import URLError

import pytest

import fedlada.cli
from fedlada.cli import COMMANDS, Command, main


def said(capsys, *words) -> tuple[object, str]:
    """How the command ends, and what it prints or says."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    return ended.value.code, f"{printed.out}{printed.err}{ended.value.code or ''}"


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_every_command_with_a_sentence(capsys, words):
    code, text = said(capsys, *words)
    assert not code
    for name, command in COMMANDS.items():
        assert f"  {name} " in text
        assert f"  {command.help}\n" in text
        assert command.help.endswith(".")


def test_the_help_begins_with_what_most_people_need():
    names = list(COMMANDS)
    assert names[:5] == ["run", "sweep", "resume", "compare", "report"]
    assert names[-3:] == ["algorithms", "cost", "privacy"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_and_explains_every_option(capsys, name):
    code, text = said(capsys, name, "--help")
    assert not code
    assert f"usage: fedlada {name} " in text
    assert f"fedlada {name} " in text.lower().partition("example")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_extra_is_one_sentence_and_help_still_lists_the_command(
    capsys, monkeypatch, name
):
    command = COMMANDS[name]
    if not command.extra:
        return
    whole = f"fedlada.{command.module}"

    def without(module: str, package: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'absent'", name="absent")

    monkeypatch.setattr(fedlada.cli, "import_module", without)
    code, _ = said(capsys, name)
    assert code == (
        f"fedlada: fedlada {name} needs absent, which is not installed: run"
        f' pip install "fedlada[{command.extra}]".'
    )
    assert name in said(capsys, "--help")[1]
    assert import_module(whole)


def test_help_imports_no_library():
    code = (
        "import sys\nfrom fedlada.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    assert not {'torch', 'rich', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_command_is_a_function_and_one_line(capsys, monkeypatch):
    def greet(parser, words):
        """Greet somebody."""
        parser.add_argument("--name", default="you", help="whom to greet")
        print(f"hello {parser.parse_args(words).name}")

    module = ModuleType("fedlada.toy")
    module.greet = greet
    monkeypatch.setitem(sys.modules, "fedlada.toy", module)
    monkeypatch.setitem(COMMANDS, "greet", Command("toy", "", "Greet somebody."))
    assert said(capsys, "greet", "--name", "Ada") == (0, "hello Ada\n")
    assert "Greet somebody.\n" in said(capsys, "--help")[1]
    assert "whom to greet" in said(capsys, "greet", "--help")[1]


def test_an_unknown_command_is_named_with_the_nearest(capsys):
    code, text = said(capsys, "rum")
    assert code == 2
    assert "there is no command 'rum'; did you mean 'run'?" in text


def test_a_file_that_is_not_there_is_one_sentence(capsys, tmp_path):
    code, _ = said(capsys, "cost", str(tmp_path / "no.toml"))
    assert str(code).startswith("fedlada: ")
    assert "no.toml" in str(code)


def test_an_error_without_a_path_says_what_it_is(capsys, monkeypatch):
    def unreachable(*_):
        raise URLError("no network")

    monkeypatch.setattr(fedlada.cli, "import_module", unreachable)
    code, _ = said(capsys, "cost", "some.toml")
    assert "address on the network cannot be read or written (<urlopen error no network>)" in code


@pytest.mark.parametrize("words", ["algorithms", "--help", "cost --help"])
def test_a_reader_that_stops_early_causes_no_error(words):
    command = f"{sys.executable} -m fedlada {words} | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert ended.stderr == ""
    assert len(ended.stdout.splitlines()) == 1
    assert ended.returncode in (0, 1)
