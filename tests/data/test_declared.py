"""A domain.toml with a ball or directions: its names, its mistakes, and its digest."""

import numpy as np
import pytest

from flower_kmeans import Ball, Sphere, TableDomain
from flower_kmeans.data.declared import (
    columns_read,
    described,
    digest_of,
    domain_from_file,
    domain_from_toml,
)
from flower_kmeans.data.tables import load_records, read_table
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.policy import ClientPolicy

pytestmark = pytest.mark.claim("reference/domains", "ball-sphere-in-file")

SPHERE = '[sphere]\ncolumns = ["x", "y"]\n'
BALL = '[ball]\ncolumns = ["x", "y"]\nradius = 2.5\ncenter = [0, 1]\n'
TABLE = '[[columns]]\nkind = "number"\nname = "x"\nlower = 0\nupper = 1\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SPHERE, Sphere(2, ["x", "y"])),
        (SPHERE.encode(), Sphere(2, ["x", "y"])),
        ("\ufeff" + SPHERE, Sphere(2, ["x", "y"])),
        (BALL, Ball(2.5, [0, 1], ["x", "y"])),
        (BALL.replace("center = [0, 1]\n", ""), Ball(2.5, [0, 0], ["x", "y"])),
        (TABLE, TableDomain.from_toml(TABLE)),
    ],
)
def test_a_file_is_the_domain_that_it_declares(text, expected, tmp_path):
    found = domain_from_toml(text)
    assert found == expected
    path = tmp_path / "domain.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert domain_from_file(path) == expected
    assert columns_read(found) == (["x"] if text == TABLE else ["x", "y"])
    assert len(digest_of(found)) == 64
    assert described(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sphere]\n", "Line 1, key 'columns': expected names in quotes"),
        ("[sphere]\ncolumns = [1]", "Line 2, key 'columns': expected names in quotes"),
        ("[sphere]\ncolumns = []", "n_features"),
        ('[sphere]\ncolumns = ["x", "x"]', "columns"),
        (SPHERE + "radius = 1", "Line 3, key 'radius': expected one of columns; got"),
        (
            SPHERE + TABLE,
            "Key 'columns': expected [sphere] alone; got 'columns'",
        ),
        (SPHERE + BALL, "expected [sphere] alone; got 'ball'"),
        ("sphere = 3", "Line 1, key 'sphere': expected a table [sphere]; got 3."),
        (
            BALL.replace("radius = 2.5\n", ""),
            "expected a number without quotes; got noth",
        ),
        (
            BALL.replace("2.5", '"2"'),
            'expected a number without quotes; got the text "2"',
        ),
        (BALL.replace("2.5", "-1"), "Expected radius positive and finite"),
        (BALL.replace("[0, 1]", "[0]"), "center with a number for each of 2 columns"),
        (
            BALL.replace("[0, 1]", "0"),
            "key 'center': expected a number for each column",
        ),
        (BALL.replace("center", "centre"), "got 'centre' (did you mean 'center'?)"),
        ("[[", "It is not TOML"),
        (b"\xff", "It is not TOML"),
    ],
)
def test_a_mistake_is_one_sentence(text, words):
    with pytest.raises(ConfigurationError) as error:
        domain_from_toml(text, "domain file d.toml")
    sentence = str(error.value)
    assert sentence.startswith("Expected the domain file d.toml as a domain. ")
    assert words in sentence
    assert "\n" not in sentence


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        domain_from_file(tmp_path / "none.toml")


def test_digests_are_those_of_declarations():
    texts = [
        SPHERE,
        BALL,
        TABLE,
        SPHERE.replace('"y"', '"z"'),
        BALL.replace("2.5", "2"),
    ]
    digests = [digest_of(domain_from_toml(text)) for text in texts]
    assert len(set(digests)) == len(texts)
    assert digest_of(domain_from_toml(TABLE)) == TableDomain.from_toml(TABLE).digest
    spaced = SPHERE.replace(" = ", "=")
    assert digest_of(domain_from_toml(spaced)) == digests[0]


@pytest.mark.parametrize("text", [SPHERE, BALL])
def test_the_named_columns_are_read_as_numbers(text, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("y,label,x\n1,a,2\n3,b,oops\n5,c,0\n")
    domain = domain_from_toml(text)
    found = load_records(path, domain=domain)
    assert found.columns == ("x", "y")
    np.testing.assert_array_equal(found.records, [[2, 1], [np.nan, 3], [0, 5]])
    path.write_text("y,label,x\n1,a,2\n5,c,0\n")
    np.testing.assert_array_equal(
        read_table(path, domain=domain).records, [[2, 1], [0, 5]]
    )


def test_a_policy_pins_a_file_or_a_table(tmp_path):
    for name, text in (("s.toml", SPHERE), ("policy.toml", 'domain = "s.toml"')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    policy = ClientPolicy.from_file(tmp_path / "policy.toml")
    assert policy.domain == Sphere(2, ["x", "y"])
    assert policy.columns == ("x", "y")
    (tmp_path / "policy.toml").write_text("[domain]\nn_features = 384\n")
    assert ClientPolicy.from_file(tmp_path / "policy.toml").domain == Sphere(384)
    (tmp_path / "policy.toml").write_text("[domain]\nn_features = 2\nradius = 1\n")
    with pytest.raises(ConfigurationError, match="'n_features'"):
        ClientPolicy.from_file(tmp_path / "policy.toml")
