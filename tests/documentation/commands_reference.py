"""docs/commands.md, which is written from the commands' own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from flows.cli import nightquant
from flows.settings import Settings
from tests.documentation.generated import HOST_DEFAULTS, alternatives
from tests.documentation.pages import ROOT

PAGE = ROOT / "docs" / "commands.md"
NOT_RUN = "<!-- not run: an example of the help, which names files, nights and bundles that only your store has -->"
# A default at the end of an option's help, which the page shows in a column of its own.
_DEFAULT = re.compile(r" \(default: ((?:[^()]|\([^()]*\))+)\)(?=\.$)")
# Words of the help that are code on the page.
_CODE = re.compile(
    r"(?<![\w`/-])(?:--?[a-z][a-z-]*|NIGHTQUANT_[A-Z_]+|PREFECT_API_URL|nightquant\.toml|current\.json)(?![\w`])"
)


def parts(command: click.Command) -> tuple[list[str], str]:
    """The paragraphs of a command's help, and its examples."""
    text = inspect.cleandoc(f"{command.help or ''}\n{command.epilog or ''}")
    paragraphs = [inspect.cleandoc(part.replace("\b\n", "")) for part in re.split(r"\n\s*\n", text) if part.strip()]
    examples = [part for part in paragraphs if part.startswith("Example")]
    return [" ".join(part.split()) for part in paragraphs if part not in examples], "\n".join(
        inspect.cleandoc(part.partition("\n")[2]) for part in examples
    )


def in_code(text: str, command: click.Command) -> str:
    """The text with options, variables, files and the command's arguments marked as code."""
    marked = _CODE.sub(lambda word: f"`{word[0]}`", text)
    for argument in command.params:
        if isinstance(argument, click.Argument) and argument.human_readable_name != "SQL":  # a language in the help
            marked = re.sub(rf"(?<![\w`-]){argument.human_readable_name}(?![\w`])", r"`\g<0>`", marked)
    return marked


class Reference:
    """The page's sections, from the commands."""

    def page(self) -> Iterator[str]:
        """One section for each command, and one below it for each of its subcommands."""
        context = click.Context(nightquant, info_name="nightquant")
        yield "| command | purpose |\n| --- | --- |"
        for name, command in self._subcommands(nightquant, context):
            (first, *_), _ = parts(command)
            yield f"| [`nightquant {name}`](#nightquant-{name}) | {in_code(first, command)} |"
        yield ""
        yield from self._section(nightquant, context, "##")
        for name, command in self._subcommands(nightquant, context):
            own = click.Context(command, info_name=name, parent=context)
            yield from self._section(command, own, "##")
            for part, subcommand in self._subcommands(command, own):
                yield from self._section(subcommand, click.Context(subcommand, info_name=part, parent=own), "###")

    def _subcommands(self, group: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
        for name in group.list_commands(context) if isinstance(group, click.Group) else ():
            command = group.get_command(context, name)
            assert command is not None
            yield name, command

    def _section(self, command: click.Command, context: click.Context, level: str) -> Iterator[str]:
        paragraphs, examples = parts(command)
        yield f"{level} `{context.command_path}`\n"
        yield in_code(paragraphs[0], command) + "\n"
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield f"```text\n{' '.join(usage.split())}\n```\n"
        for paragraph in paragraphs[1:]:
            yield in_code(paragraph, command) + "\n"
        yield from self._options(command)
        if examples:
            yield f"{NOT_RUN}\n```sh\n{examples}\n```\n"

    def _options(self, command: click.Command) -> Iterator[str]:
        options = [option for option in command.params if isinstance(option, click.Option) and option.name != "help"]
        if not options:
            return
        yield "| option | value | default | meaning |\n| --- | --- | --- | --- |"
        for option in options:
            names = ", ".join(f"`{name}`" for name in sorted((*option.opts, *option.secondary_opts), key=len))
            meaning, default = self._meaning(option)
            yield f"| {names} | {self._value(option)} | {default} | {in_code(meaning, command)} |"
        yield ""

    def _value(self, option: click.Option) -> str:
        if option.is_flag or option.count:
            return ""
        if isinstance(option.type, click.Choice):
            return alternatives(f"`{choice}`" for choice in option.type.choices)
        if option.metavar:
            return alternatives(f"`{name}`" for name in option.metavar.split("|"))
        if isinstance(option.type, click.IntRange):
            return f"integer ≥ {option.type.min}"
        kinds = {"text": "text", "integer": "integer", "float": "number"}
        return kinds.get(option.type.name, f"`{option.type.name.upper()}`")

    def _meaning(self, option: click.Option) -> tuple[str, str]:
        """The option's help, and its default as the page shows it."""
        text = option.help or ""
        written = _DEFAULT.search(text)
        text = _DEFAULT.sub("", text)
        if option.required:
            return text, "required"
        if setting := Settings.model_fields.get(option.name or ""):
            value = HOST_DEFAULTS.get(str(option.name)) or f"`{setting.get_default()}`"
            return text, f"`NIGHTQUANT_{str(option.name).upper()}`, or {value}"
        if written:
            return text, _CODE.sub(lambda word: f"`{word[0]}`", written[1])
        # An option without a default has a sentinel of click's.
        has_default = isinstance(option.default, str | int | float) and option.default != ""
        return text, f"`{option.default}`" if has_default and not option.is_flag else ""


def sections() -> Iterator[str]:
    """The page's lines."""
    return Reference().page()
