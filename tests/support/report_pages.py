"""Reads pages of reports: their elements, their tables, and the runs that they are made of."""

import re
from functools import cache
from html.parser import HTMLParser

import numpy as np

from flower_kmeans import Ball, Box, PrivacyBudget, simulate, strategies

VOID = {"meta", "link", "br", "wbr"}
N_CLIENTS = 5
RECORDS = np.random.default_rng(3).uniform(0, 10, (300, 2))
PARTITIONS = np.array_split(RECORDS, N_CLIENTS)
WIDE = np.array_split(np.random.default_rng(4).uniform(0, 1, (300, 18)), N_CLIENTS)
SHARED, MASKED, TRUSTED = "distributed-noise", "oblivious-server", "trusted-server"
TRUSTS = {
    "Lloyd": ("plain",),
    "FastLloyd": ("plain", "clients-only", MASKED, SHARED, TRUSTED),
    "GLloyd": (MASKED, SHARED, TRUSTED),
    "SuLloyd": (MASKED, TRUSTED),
    "SynopsisKMeans": ("clients-only", SHARED, TRUSTED),
    "FedDPKMeans": (SHARED, TRUSTED),
    "PEMeans": (SHARED, TRUSTED),
    "HDPEMeans": (SHARED, TRUSTED),
}
MODES = [(name, trust) for name, trusts in TRUSTS.items() for trust in trusts]


def strategy_of(name, trust, epsilon=2.0, **options):
    """Return a strategy of three clusters over the small federation."""
    options = {"n_clients": N_CLIENTS, "trust": trust} | options
    domain = Ball(3.0, [0.5] * 18) if name == "HDPEMeans" else Box([0, 0], [10, 10])
    if name == "Lloyd":
        return strategies.Lloyd(3, domain, **options)
    if name == "FedDPKMeans":
        points = np.random.default_rng(5).uniform(0, 10, (20, 2))
        options = {"server_data": points, "cost": True} | options
    if name in ("FedDPKMeans", "PEMeans", "HDPEMeans"):
        options = {"n_rounds": 2} | options
    budget = options.pop(
        "privacy", PrivacyBudget(None if trust == "plain" else epsilon)
    )
    return getattr(strategies, name)(3, domain, budget, n_records=300, **options)


@cache
def finished(name, trust):
    """Return the clustering of a run, made once."""
    return simulate(
        strategy_of(name, trust), WIDE if name == "HDPEMeans" else PARTITIONS
    )


class Element:
    """An element with its attributes and what is in it."""

    def __init__(self, name, attributes):
        self.name, self.attributes, self.children = name, attributes, []

    @property
    def text(self):
        """Return all text in it."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, name=None, class_=None):
        """Return the elements in it, in their order."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                classes = (child.attributes.get("class") or "").split()
                if name in (None, child.name) and class_ in (None, *classes):
                    found.append(child)
                found += child.all(name, class_)
        return found

    def the(self, name, **attributes):
        """Return the one element with these attributes."""
        (found,) = [
            e for e in self.all(name) if attributes.items() <= e.attributes.items()
        ]
        return found


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice"
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert tag not in VOID
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(page):
    """Return the page's elements, and require that every tag is closed where it should be."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].name}> is not closed"
    return reader.root


def tables(root):
    """Return the rows of every table with their cells' texts, by caption."""
    found = {}
    for table in root.all("table"):
        rows = [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for row in table.all("tr")
        ]
        found[table.the("caption").text] = rows
    return found


def addresses(root):
    """Return whatever a browser might fetch: attributes that name something, and url() in styles.

    Anchors within the page and data of the page's own are none.
    """
    found = []
    for element in root.all():
        for name, value in element.attributes.items():
            naming = name in (
                "src",
                "href",
                "srcset",
                "action",
                "data",
                "poster",
                "xlink:href",
            )
            if naming and not re.match(r"#|data:", value):
                found.append(value)
            if name in ("style", "http-equiv"):
                found += re.findall(r"url\(|@import|refresh", value.lower())
        if element.name == "style":
            found += re.findall(r"url\(|@import", element.text)
        if element.name in (
            "script",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "img",
        ):
            found.append(f"<{element.name}>")
    return found
