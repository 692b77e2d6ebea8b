"""A new Flower app from templates, which runs as it is."""

import keyword
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import jinja2

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import reason_and_cure

_FILES = {  # from a template to the place of its file in the app's directory
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "LICENSE": "LICENSE",
    "__init__.py": "{package}/__init__.py",
    "domain.toml": "{package}/domain.toml",
    "data.py": "{package}/data.py",
    "client_app.py": "{package}/client_app.py",
    "server_app.py": "{package}/server_app.py",
    "test_app.py": "tests/test_app.py",
}

_LONGEST_NAME = 32  # Flower builds no app with a longer name, nor one with _


def make_app(directory: Path) -> None:
    """Write a complete Flower app to a new directory. Its name becomes the app's name.

    Raises
    ------
    ConfigurationError
        If the directory exists or cannot be made, or its name cannot be the name of a
        new package.
    """
    name = directory.name
    package = name.replace("-", "_")
    # Flower puts the app before all installed packages, so it must not hide one of
    # them.
    is_new = re.fullmatch(
        r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name
    ) and not keyword.iskeyword(name)
    if not is_new or len(name) > _LONGEST_NAME or find_spec(package) is not None:
        raise ConfigurationError(
            "Expected a name of lower-case letters, digits and - that begins with a letter, has at "
            f"most {_LONGEST_NAME} characters, and is neither a keyword of Python nor a package "
            f"that is installed. Got {name!r} instead."
        )
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("flower_kmeans.cli", "new_app"),
        autoescape=False,  # noqa: S701 - not HTML
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    try:
        directory.mkdir()
        try:
            for template, place in _FILES.items():
                path = directory / place.format(package=package)
                path.parent.mkdir(exist_ok=True)
                text = templates.get_template(f"{template}.j2").render(
                    name=name, package=package
                )
                path.write_text(text, encoding="utf-8")
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)  # half of an app must not stay
            raise
    except OSError as error:
        raise ConfigurationError(
            f"Expected a new directory in one that can be written to. Got {directory} instead: "
            f"{reason_and_cure(error)}."
        ) from None
