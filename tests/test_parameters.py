"""Parameters: what a declaration says about checks and documents."""

import base64
import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import pytest

from flower_kmeans.canonical import (
    array_from_text,
    array_to_text,
    real_from_text,
    real_to_text,
)
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.parameters import (
    FLAG,
    LARGEST,
    POSITIVE,
    checked,
    choice,
    left_out,
    read_parameters,
    real,
    reals,
    require_parameters,
    whole,
    write_parameters,
)


@dataclass(frozen=True)
class Declared:
    name: ClassVar[str] = "declared"
    k: Annotated[int, whole(1, 9)]
    other: int = 5  # not declared
    _: KW_ONLY
    rounds: Annotated[int, whole(1, 7, auto=True)] = 2
    any: Annotated[int, whole()] = 3
    bounded: Annotated[float, real(0.5, 2.0)] = 1.0
    chosen: Annotated[float, real(0.5, 2.0, auto=True)] = 1.5
    clip: Annotated[float | None, POSITIVE] = None
    size: Annotated[int | None, whole(0, 9)] = None
    cost: Annotated[bool, left_out(FLAG)] = False
    how: Annotated[str, choice("a", "b", auto=True)] = "a"
    clips: Annotated[tuple[tuple[str, float], ...] | None, reals("x", "y")] = None
    made: Annotated[int, whole()] = field(default=0, init=False)

    def __post_init__(self):
        require_parameters(self)


def planned(**options):
    return Declared(**checked(Declared, {"k": 1, **options}))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"k": 0}, ConfigurationError, r"Expected k in \[1, 9\]. Got 0 instead"),
        ({"k": 10}, ConfigurationError, r"Got 10 instead"),
        ({"k": 2.0}, ConfigurationTypeError, "Expected k as an integer. Got float"),
        ({"k": True}, ConfigurationTypeError, "Expected k as an integer. Got bool"),
        ({"k": None}, ConfigurationTypeError, "Expected k as an integer. Got NoneType"),
        ({"k": "auto"}, ConfigurationTypeError, "Expected k as an integer. Got str"),
        (
            {"rounds": "many"},
            ConfigurationError,
            "rounds as an integer or 'auto'. Got 'many'",
        ),
        ({"rounds": 8}, ConfigurationError, "rounds in"),
        ({"any": LARGEST + 1}, ConfigurationError, "any in"),
        (
            {"bounded": 2.1},
            ConfigurationError,
            r"Expected bounded in \[0.5, 2\]. Got 2.1 instead",
        ),
        ({"bounded": math.nan}, ConfigurationError, "bounded in"),
        ({"bounded": 10**400}, ConfigurationError, "bounded in"),
        (
            {"bounded": "1"},
            ConfigurationTypeError,
            "Expected bounded as a number. Got str",
        ),
        (
            {"bounded": True},
            ConfigurationTypeError,
            "Expected bounded as a number. Got bool",
        ),
        ({"chosen": 0.4}, ConfigurationError, r"chosen in \[0.5, 2\]. Got 0.4 instead"),
        (
            {"chosen": "1"},
            ConfigurationError,
            r"chosen in \[0.5, 2\], or 'auto'. Got '1' instead",
        ),
        (
            {"chosen": None},
            ConfigurationTypeError,
            "Expected chosen as a number. Got NoneType",
        ),
        ({"clip": 0}, ConfigurationError, "clip positive and finite. Got 0 instead"),
        ({"clip": -1.0}, ConfigurationError, "clip positive and finite"),
        ({"clip": math.nan}, ConfigurationError, "clip positive and finite"),
        ({"clip": math.inf}, ConfigurationError, "clip positive and finite"),
        ({"clip": "5"}, ConfigurationTypeError, "Expected clip as a number. Got str"),
        ({"clip": True}, ConfigurationTypeError, "Expected clip as a number. Got bool"),
        ({"cost": 1}, ConfigurationTypeError, "Expected cost as a bool. Got int"),
        (
            {"how": "c"},
            ConfigurationError,
            r"how in \['auto', 'a', 'b'\]. Got 'c' instead",
        ),
        ({"how": 1}, ConfigurationError, "how in"),
        ({"clips": [1]}, ConfigurationTypeError, "Expected clips as a mapping"),
        (
            {"clips": {"z": 1}},
            ConfigurationError,
            r"releases in \['x', 'y'\]. Got 'z' instead",
        ),
        (
            {"clips": {"x": "1"}},
            ConfigurationTypeError,
            "Expected clips for 'x' as a number. Got str",
        ),
        (
            {"clips": {"x": 0}},
            ConfigurationError,
            r"'x' in \[1e-12, 1e\+12\]. Got 0 instead",
        ),
        ({"clips": {"x": math.nan}}, ConfigurationError, "clips for 'x' in .* Got nan"),
    ],
)
def test_errors_hold_the_parameter_what_is_expected_and_what_was_given(
    options, error, match
):
    with pytest.raises(error, match=match):
        planned(**options)
    with pytest.raises(error, match=match):
        Declared(**{"k": 1, **options})


def test_attributes_are_plain_values():
    made = planned(
        k=np.int64(3), clip=np.float32(0.5), clips={"y": 2, "x": np.int64(1)}, rounds=7
    )
    assert (made.k, made.clip, made.clips) == (3, 0.5, (("x", 1.0), ("y", 2.0)))
    assert (type(made.k), type(made.clip), type(made.clips[0][1])) == (
        int,
        float,
        float,
    )
    assert type(planned(bounded=1).bounded) is float


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": np.int64(1)}, "k as a plain int. Got int64"),
        ({"bounded": 1}, "bounded as a plain float. Got int"),
        ({"clips": {"x": 1.0}}, "clips as a plain tuple. Got dict"),
        ({"clips": (("y", 1.0), ("x", 1.0))}, "clips as a plain tuple"),
    ],
)
def test_a_made_object_holds_plain_values_only(options, match):
    with pytest.raises(ConfigurationTypeError, match=match):
        Declared(**{"k": 1, **options})


@pytest.mark.parametrize("name", ["rounds", "chosen", "how"])
def test_a_made_object_has_nothing_left_to_choose(name):
    with pytest.raises(ConfigurationError, match=f"{name}.*'auto'"):
        Declared(1, **{name: "auto"})


def test_none_passes_where_the_type_allows_it():
    made = planned(clip=None, size=None, clips=None)
    assert (made.clip, made.size, made.clips) == (None, None, None)


FULL = Declared(
    2,
    rounds=3,
    any=4,
    chosen=2.0,
    clip=0.5,
    size=0,
    cost=True,
    how="b",
    clips=(("x", 2.0),),
)


def test_a_document_has_what_is_declared():
    always = {
        "k": 2,
        "rounds": 3,
        "any": 4,
        "bounded": "0x1.0000000000000p+0",
        "how": "b",
    }
    always |= {"chosen": "0x1.0000000000000p+1"}
    given = {"size": 0, "cost": True}
    given |= {"clip": "0x1.0000000000000p-1", "clips": {"x": "0x1.0000000000000p+1"}}
    assert write_parameters(FULL) == always | given
    plain = Declared(2, rounds=3, any=4, chosen=2.0, how="b")
    assert write_parameters(plain) == always
    for holder in (FULL, plain):
        values = read_parameters(Declared, write_parameters(holder))
        assert Declared(**values) == holder


def test_an_empty_mapping_stands_in_documents():
    """What is left out is ``None``: clients are protected, and no clip is given."""
    assert write_parameters(Declared(2, clips=()))["clips"] == {}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"more": 1}, ConfigurationError),
        ({"made": 0}, ConfigurationError),
        ({"other": 5}, ConfigurationError),
        ({"rounds": "auto"}, ConfigurationTypeError),
        ({"how": "auto"}, ConfigurationTypeError),
        ({"size": None}, ConfigurationTypeError),
        ({"how": None}, ConfigurationError),
        ({"cost": False}, ConfigurationTypeError),
        ({"clips": []}, ConfigurationTypeError),
        ({"clip": 0.5}, MessageError),
        ({"bounded": "1.0"}, MessageError),
        ({"chosen": "auto"}, MessageError),
    ],
)
def test_a_document_has_one_encoding(change, error):
    with pytest.raises(error):
        Declared(**read_parameters(Declared, write_parameters(FULL) | change))


@pytest.mark.parametrize("lacking", ["k", "rounds", "bounded", "chosen", "how"])
def test_a_document_lacks_no_field(lacking):
    config = write_parameters(FULL)
    del config[lacking]
    with pytest.raises(ConfigurationError, match="'declared' are not as expected"):
        read_parameters(Declared, config)


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (whole(), "integer", {"-3": -3, "1.5": ValueError}),
        (whole(1), "integer from 1", {"7": 7}),
        (whole(1, 9), "integer in [1, 9]", {"7": 7, "x": ValueError}),
        (real(0.5, 2), "number in [0.5, 2]", {"1": 1.0, "one": ValueError}),
        (POSITIVE, "positive number", {"1e3": 1000.0}),
        (FLAG, "true|false", {"true": True, "false": False, "1": LookupError}),
        (choice("a", "b"), "a|b", {"b": "b"}),
        (
            reals("x", "y"),
            "NAME=NUMBER,...",
            {"x=1,y=2.5": {"x": 1, "y": 2.5}, "x": ValueError},
        ),
    ],
)
def test_a_declaration_says_what_a_user_writes(kind, values, texts):
    assert kind.values == values
    for text, expected in texts.items():
        if isinstance(expected, type):
            with pytest.raises(expected):
                kind.parse(text)
        else:
            assert kind.parse(text) == expected


def test_zero_has_no_sign_in_documents():
    """A second spelling would be another hash of the same run."""
    minus = base64.b64encode(np.array([-0.0, 1]).tobytes()).decode()
    assert real_from_text(real_to_text(-0.0)).hex() == (0.0).hex()
    assert array_to_text([-0.0, 1]) == array_to_text([0, 1]) != minus
    with pytest.raises(MessageError, match="canonical"):
        real_from_text((-0.0).hex())
    with pytest.raises(MessageError, match="base64"):
        array_from_text(minus, (2,))
