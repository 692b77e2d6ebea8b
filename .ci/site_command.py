"""The site's page of the command ``flower-kmeans`` is made from the command."""

from typing import Any

PLACE = "[commands]: # (.ci/site_command.py puts the tables here)"


def cell(text: str) -> str:
    """Return a text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def values(parameter: Any) -> str:
    """Return what a parameter takes."""
    if getattr(parameter, "is_flag", False):
        return "a flag"
    choices = getattr(parameter.type, "choices", None) or ()
    spelled = parameter.metavar or "|".join(
        getattr(one, "value", one) for one in choices
    )
    kind = (
        ", ".join(f"`{one}`" for one in spelled.split("|"))
        if "|" in spelled
        else spelled
    )
    kind = kind or parameter.type.name
    if parameter.required:
        return f"{kind}; required"
    plain = isinstance(parameter.default, int | float | str) or hasattr(
        parameter.default, "parts"
    )
    default = getattr(parameter.default, "value", parameter.default)
    return f"{kind}; `{default}` by default" if plain else kind


def commands() -> dict[str, Any]:
    """Return all commands by name, those of a group as ``GROUP NAME``."""
    from typer.main import get_command

    from flower_kmeans.cli.app import app

    found: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():
        group = getattr(command, "commands", None)
        found |= (
            {f"{name} {n}": c for n, c in group.items()} if group else {name: command}
        )
    return dict(sorted(found.items()))


def tables() -> str:
    """Return all commands with their options, in Markdown."""
    lines: list[str] = []
    for name, command in commands().items():
        lines += [f"## {name}", "", command.help.replace("\f", ""), ""]
        lines += ["| option | takes | |", "|---|---|---|"]
        for parameter in command.params:
            named = parameter.param_type_name == "argument"
            spelled = parameter.name.upper() if named else ", ".join(parameter.opts)
            told = cell(getattr(parameter, "help", None) or "")
            lines.append(f"| `{spelled}` | {values(parameter)} | {told} |")
        lines.append("")
    return "\n".join(lines)


def filled(text: str) -> str:
    """Return the text of a page, with the tables in their place."""
    return text.replace(PLACE, tables()) if PLACE in text else text
