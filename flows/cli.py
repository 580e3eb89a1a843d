"""The command line: ``nightquant`` and ``python -m flows``."""

from __future__ import annotations

import os
import sys
from pkgutil import resolve_name

import click

from flows.execution.signals import Terminated, unwinding_on_sigterm
from storage.errors import NightquantError

# Module, function and help text of each subcommand. A subcommand's module is imported on demand, so that ``--help``
# stays fast.
COMMANDS = {
    "status": ("status:command", "Show the state of the store (the default command)."),
    "nightly": ("nightly:nightly", "Quantize, evaluate, benchmark and publish tonight's candidates."),
    "serve": ("nightly:serve", "Schedule and run the nightly deployment in this process."),
    "workloads": ("setup:workloads", "List the workloads and their recipes, or check workload files."),
    "init": ("init:command", "Write a workload file for your own model."),
    "show": ("show:command", "Show a workload's bundle, history and layers."),
    "compare": ("query:compare", "Compare two runs, candidate by candidate."),
    "query": ("query:query", "Query the results with SQL."),
    "report": ("query:report", "Write a night's report as one HTML file."),
    "acknowledge": ("query:acknowledge", "Accept a night's regressions and record the reason."),
    "generate": ("search:generate", "Sample text from a float or quantized language model."),
    "sensitivity": ("search:sensitivity", "Rank a model's layers by the loss that quantization causes."),
    "search": ("search:search", "Search for the best recipes of one workload."),
    "doctor": ("setup:doctor", "Check whether benchmarks on this host are reliable."),
    "handoff": ("handoff:command", "List, show, verify, sign, export, promote or roll back bundles."),
    "operations": ("operations:command", "Set up alerts for runs that fail or never begin."),
    "store": ("setup:store", "Check, compact or clean the store."),
    "config": ("setup:config", "Show each setting with its value."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the subcommands in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand; return None if the name is unknown."""
        return self.load(cmd_name) if cmd_name in COMMANDS else None

    @staticmethod
    def load(name: str) -> click.Command:
        """Import a subcommand by its name."""
        command: click.Command = resolve_name(f"flows.commands.{COMMANDS[name][0]}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from `COMMANDS` without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, meaning) for name, (_, meaning) in COMMANDS.items()])


@click.command(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nightquant")
@click.option("--debug", is_flag=True, help="Show tracebacks and Prefect's own log.")
@click.pass_context
def nightquant(context: click.Context, debug: bool) -> None:
    """Quantize PyTorch models to int8 every night, measure the candidates, and publish the best one for each workload.

    \b
    Exit codes: 0 (success), 1 (some work failed), 2 (the request or the configuration is invalid), 3 (a regression
    was found), 4 (another run has locked the store).

    \b
    Example:
      nightquant nightly --workload lstm-demo --profile quick
      nightquant query "FROM leaderboard"
    """
    context.obj = debug
    if context.invoked_subcommand is None:
        status = LazyGroup.load("status")
        with status.make_context("status", [], parent=context) as own:
            status.invoke(own)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code; show an expected error as one message without a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    # Accept ``--debug`` anywhere, although click expects a group's option before the subcommand.
    ordered = (["--debug"] if debug else []) + [argument for argument in words if argument != "--debug"]
    try:
        with unwinding_on_sigterm():
            code = nightquant.main(ordered, prog_name="nightquant", standalone_mode=False)
    except NightquantError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _fail("Interrupted.", 130)
    except Terminated:
        _fail("Stopped by SIGTERM.", 143)
    except BrokenPipeError:
        # It is not an error if a reader such as ``head`` closes the pipe. Discard the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    click.echo(f"nightquant: {message}", err=True)
    sys.exit(code)
