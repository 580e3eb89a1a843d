"""What libraries raise is one line, what they print is not seen, and the user's own warnings are."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

from storage.errors import QuantizationError
from tasks.environment.libraries import LibraryError, contained, in_one_line, place_of, reported_as


class TwoArgumentsError(Exception):
    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("Shared mode is not supported."), "ValueError: Shared mode is not supported"),
        (RuntimeError("Error(s) in loading state_dict for Net:\n\tUnexpected key(s): 'a'.\n\n\tand more"),
         "RuntimeError: Error(s) in loading state_dict for Net: Unexpected key(s): 'a'"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("x" * 10_000), f"RuntimeError: {'x' * 300} …"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)  # fmt: skip
def test_an_error_in_one_line(error: BaseException, said: str) -> None:
    assert in_one_line(error) == said


@pytest.mark.parametrize("error", [TwoArgumentsError("left", "right"), SystemExit(1), OSError(28, "no space")])
@pytest.mark.slow
def test_every_error_names_the_failed_action_and_place_and_keeps_its_traceback(error: BaseException) -> None:
    with pytest.raises(LibraryError) as caught, reported_as("It cannot be built"):
        raise error
    assert str(caught.value).startswith(f"It cannot be built: {in_one_line(error)} in test_libraries.py, line ")
    assert "\n" not in str(caught.value)
    assert "--debug" in caught.value.hint
    assert "raise error" in caught.value.in_full()


class Layer(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ rows


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_error_within_a_model_names_the_module_and_the_users_line(is_wrapped: bool) -> None:
    def call() -> None:
        try:
            torch.nn.Sequential(torch.nn.Sequential(Layer()))(torch.zeros(2, 3))
        except RuntimeError as error:
            if is_wrapped:
                raise ValueError("an exporter failed") from error
            raise

    with pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    line = Layer.forward.__code__.co_firstlineno + 1
    assert place_of(caught.value) == f" in module 0.0 (Layer), test_libraries.py, line {line}"


def test_an_expected_error_and_an_interruption_pass_as_they_are() -> None:
    for error in (QuantizationError("no kernel"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, reported_as("It cannot be built"):
            raise error
        assert caught.value is error


def make_noise() -> None:
    """Print, log and warn as libraries do: in Python, by a handler that has its stream already, and in C."""
    print("on standard output")  # noqa: T201
    sys.stderr.write("on standard error\n")
    logging.getLogger("a.library").error("in the log")
    warnings.warn_explicit("by a library", UserWarning, pytest.__file__, 1)
    os.write(1, b"native standard output\n")
    os.write(2, b"native standard error\n")
    ctypes.CDLL(None).puts(b"buffered by C")


def fail_noisily() -> None:
    make_noise()
    raise ValueError("no")


def test_nothing_that_is_printed_gets_out_and_all_is_as_before_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    with contained():
        make_noise()
    assert capfd.readouterr() == ("", "")
    make_noise()
    ctypes.CDLL(None).fflush(None)
    out, error = capfd.readouterr()
    assert out.splitlines() == ["on standard output", "native standard output", "buffered by C"]
    assert error.splitlines()[-1] == "native standard error"
    assert logging.getLogger("a.library").isEnabledFor(logging.ERROR)


def test_it_is_passed_on_where_it_may_be_the_users(capfd: pytest.CaptureFixture[str]) -> None:
    with contained(passed_on=True):
        make_noise()
    assert capfd.readouterr().err.splitlines()[0] == "on standard output"
    with pytest.raises(LibraryError) as caught, reported_as("It cannot be built"), contained(passed_on=True):
        fail_noisily()
    assert capfd.readouterr() == ("", "")
    assert "native standard error" in caught.value.in_full()
    assert "native" not in str(caught.value)


@pytest.mark.parametrize(("folder", "is_shown"), [("mine", True), ("site-packages", False)])
def test_warnings_about_the_users_own_files_are_shown(
    folder: str, is_shown: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / folder / "warning_module.py"
    path.parent.mkdir()
    path.write_text("import warnings\ndef warn():\n    warnings.warn('a branch depends on values', stacklevel=1)\n")
    spec = importlib.util.spec_from_file_location("warning_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contained():
        module.warn()
    assert ("a branch depends on values" in capfd.readouterr().err) is is_shown
