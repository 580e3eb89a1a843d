"""The command line: ``nightquant`` and ``python -m flows``."""

from __future__ import annotations

import os
import sys
from pkgutil import resolve_name

import click
from click.shell_completion import CompletionItem

from flows.execution.signals import Terminated, unwinding_on_sigterm
from storage.errors import NightquantError

# By name: where the subcommand is, and what it does. Its module is imported on use, so that ``--help`` stays fast.
COMMANDS = {
    "status": ("status:command", "Show the state of the store; the same as no command."),
    "nightly": ("nightly:nightly", "Quantize, evaluate, benchmark and hand over: one night."),
    "serve": ("nightly:serve", "Serve the nightly deployment from this one process."),
    "workloads": ("setup:workloads", "List the workloads and their recipes, or check workload files."),
    "init": ("init:command", "Write a workload file for a model of your own."),
    "show": ("story:command", "Tell a workload's story: bundle, history, layers, recipe."),
    "compare": ("compare:command", "Compare two runs, candidate by candidate."),
    "query": ("query:query", "Ask the results in SQL."),
    "report": ("query:report", "Write the night's report as one HTML file."),
    "acknowledge": ("status:acknowledge", "Accept what a night found, with a reason."),
    "generate": ("models:generate", "Sample text from a language model, float or quantized."),
    "sensitivity": ("models:sensitivity", "Rank a model's layers by what quantizing them costs."),
    "doctor": ("setup:doctor", "Say whether a benchmark on this machine can be trusted."),
    "handoff": ("handoff:command", "List, show, verify, sign, export, promote or roll back bundles."),
    "operations": ("operations:command", "Set up alarms for nights that fail or never begin."),
    "store": ("store:command", "Check, compact or clean the store."),
    "config": ("setup:config", "Show the settings and where each comes from."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the subcommands in the order of a newcomer's day."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand."""
        return self.load(cmd_name) if cmd_name in COMMANDS else None

    @staticmethod
    def load(name: str) -> click.Command:
        """Import one of the subcommands."""
        command: click.Command = resolve_name(f"flows.commands.{COMMANDS[name][0]}")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete subcommands from the table, importing none; options as click does."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=meaning) for name, (_, meaning) in COMMANDS.items() if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, meaning) for name, (_, meaning) in COMMANDS.items()])


@click.command(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nightquant")
@click.option("--debug", is_flag=True, help="Show tracebacks and Prefect's own log.")
@click.pass_context
def nightquant(context: click.Context, debug: bool) -> None:
    """Quantize PyTorch models to int8 every night, measure honestly, hand the winner over.

    \b
    Exit codes: 0 good, 1 some work failed, 2 the request or the configuration is wrong, 3 a regression was found,
    4 another night holds the store.

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
    """Run the command line and exit with its code; expected errors are one message without a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    # Users write --debug anywhere; click wants a group's option before the subcommand.
    ordered = (["--debug"] if debug else []) + [argument for argument in given if argument != "--debug"]
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
        # The reader (head, say) has seen enough: not an error. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    click.echo(f"nightquant: {message}", err=True)
    sys.exit(code)
