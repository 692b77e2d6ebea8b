"""All pages and apps take one strategy and one trust model; a page that takes another says why."""

import re

import pytest
from pages import PAGES, ROOT, blocks, page_id

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.protocol.trust import TRUST_MODELS
from flower_kmeans.strategies import BY_NAME, SynopsisKMeans

pytestmark = pytest.mark.claim("existing-app", "takes-synopsiskmeans-under-distributed")

TEMPLATES = ROOT / "flower_kmeans" / "cli" / "new_app"
NEW = "flower-kmeans new"
MEASUREMENTS = "docs/tables/"  # of all strategies

# Apps, and the page that describes each.
APPS = {
    path.parent: "docs/deploy.md" if path.parent.name == "app" else page_id(readme)
    for path in sorted((ROOT / "simulations").glob("**/pyproject.toml"))
    for readme in [path.parent / "README.md"]
}
SCRIPTS = {
    ROOT / "simulations" / "feddp": "simulations/feddp/README.md",
    ROOT / "simulations" / "omop": "simulations/omop/README.md",
}
ON_THE_PATH = (
    "README.md",
    "docs/index.md",
    "docs/tutorial.md",
    "docs/own-data.md",
    "docs/existing-app.md",
    "docs/deploy.md",
    "simulations/existing-app/README.md",
    "simulations/photo/README.md",
    NEW,
)
"""Pages that lead a newcomer: each takes the defaults, by name."""

# What pages take instead, and the words that say why.
OTHERS = {
    "docs/vertical.md": ({"VerticalKMeans"}, "Parties hold different **columns**"),
    "docs/deploy-vertical.md": ({"vertical"}, "no other strategy joins columns"),
    "simulations/vertical/README.md": (
        {"VerticalKMeans"},
        "no other strategy joins columns",
    ),
    "docs/reference/strategies.md": (
        {"FedDPKMeans", "FastLloyd"},
        "can release the inertia of the clustering with their last round",
    ),
    "simulations/feddp/README.md": (
        {"FedDPKMeans", "GLloyd"},
        "the experiments of the FedDP-KMeans paper",
    ),
    NEW: ({"clients-only"}, "nobody sees an answer without noise"),
}

STRATEGY = {"SynopsisKMeans", "synopsis"}  # the class, and its name in options
TRUST = "distributed-noise"
CLASSES = {cls.__name__ for cls in BY_NAME.values()}

_MADE = re.compile(rf"\b({'|'.join(CLASSES)})\(")
_OPTION = re.compile(r"--(?:strategy|trust) ([\w-]+)")
_SETTING = re.compile(r"\b(?:strategy|trusts?) ?= ?([\[(]?['\"][^\n#\])]+)")


def taken(text):
    """Return the strategies that a text makes, and those and the trust models that it sets."""
    names = {*_MADE.findall(text), *_OPTION.findall(text)}
    for values in _SETTING.findall(text):
        names.update(re.findall(r"(?<=['\"])[\w-]+(?=['\"])", values))
    return names & {*CLASSES, *BY_NAME, *TRUST_MODELS}


def sources():
    """Return of each page its code, that of its app included, and all that it says."""
    code = {page_id(page): [block.text for block in blocks(page)] for page in PAGES}
    said = {page_id(page): [page.read_text("utf-8")] for page in PAGES}
    for folder, page in {**APPS, **SCRIPTS}.items():
        files = [*folder.rglob("*.py"), *folder.rglob("*.toml")]
        code[page] += [path.read_text("utf-8") for path in sorted(files)]
    templates = [path.read_text("utf-8") for path in sorted(TEMPLATES.glob("*.j2"))]
    code[NEW] = said[NEW] = templates
    return {
        page: ("\n".join(code[page]), " ".join("\n".join(said[page]).split()))
        for page in code
        if not page.startswith(MEASUREMENTS)
    }


SOURCES = sources()


def test_the_defaults_are_those_of_the_readme():
    budget = PrivacyBudget(1.0)
    made = SynopsisKMeans(3, Box([0], [1]), budget, n_records=100, n_clients=5)
    code, said = SOURCES["README.md"]
    assert taken(code) == {"SynopsisKMeans"}
    assert f'This is the default, `trust="{TRUST}"`' in said
    assert made.trust == TRUST


@pytest.mark.parametrize("page", SOURCES)
def test_a_page_takes_the_defaults_or_says_why_not(page):
    code, said = SOURCES[page]
    expected, words = OTHERS.get(page, (set(), ""))
    others = taken(code) - STRATEGY - {TRUST}
    assert others == expected, (
        f"{page} takes {others}: take the defaults, or say why not"
    )
    assert words in said


@pytest.mark.parametrize("page", ON_THE_PATH)
def test_pages_for_newcomers_take_the_default_strategy(page):
    assert taken(SOURCES[page][0]) & STRATEGY


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("FastLloyd(4, box)", {"FastLloyd"}),
        ("made = Lloyd(4)", {"Lloyd"}),
        ("from x import FastLloyd", set()),
        ('strategy="feddp" trust="clients-only"', {"feddp", "clients-only"}),
        ('trusts = ["oblivious-server", "plain"]', {"oblivious-server", "plain"}),
        ("trusts=('vertical',)", {"vertical"}),
        ("plan --strategy vertical --trust plain", {"vertical", "plain"}),
        ('strategy = "synopsis" # or "fastlloyd"', {"synopsis"}),
        ("strategy = FedAvg()", set()),
    ],
)
def test_what_a_text_takes(text, names):
    assert taken(text) == names
