"""Records from JSON: what fits becomes a frozen dataclass, and everything else is refused at its place."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest

from qcn.errors import UsageError
from qcn.storage import records


@dataclass(frozen=True)
class Row:
    epoch: int
    error: float


@dataclass(frozen=True)
class Record:
    name: str
    exact: bool
    loss: Literal["ce", "spread"]
    clip: float | None
    history: tuple[Row, ...]
    pair: tuple[int, float]
    sizes: dict[str, Row]
    names: list[str]
    facts: dict[str, Any]
    step: int | str = 0

    def __post_init__(self) -> None:
        if self.name == "":
            raise ValueError("a run needs a name")


ROW = {"epoch": 1, "error": 0.5}
GOOD: dict[str, Any] = {
    "name": "demo",
    "exact": True,
    "loss": "ce",
    "clip": 5,
    "history": [ROW, {"epoch": 2, "error": 0}],
    "pair": [1, 2.5],
    "sizes": {"a": {"epoch": 3, "error": 1.5}},
    "names": ["x"],
    "facts": {"any": [1, None]},
    "step": "last",
}


def changed(**entries: Any) -> dict[str, Any]:
    return {**GOOD, **entries}


def test_a_record_comes_back_as_it_was_written() -> None:
    record = records.read(Record, GOOD, "run.json")
    assert record.history == (Row(1, 0.5), Row(2, 0.0))
    assert record.clip == 5.0 and type(record.clip) is float, "a whole number is a number"
    assert record.pair == (1, 2.5) and record.sizes == {"a": Row(3, 1.5)} and record.names == ["x"]
    assert records.read(Record, records.parse(json.dumps(asdict(record))), "run.json") == record
    assert records.read(Record, changed(clip=None), "run.json").clip is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"history": [*[ROW] * 3, {"epoch": "4", "error": 0}]},
            "run.json: history[3].epoch must be an integer, not '4'"),
        ({"history": [{"epoch": True, "error": 0}]}, "run.json: history[0].epoch must be an integer, not true"),
        ({"history": [{"epoch": 1, "error": True}]}, "run.json: history[0].error must be a finite number, not true"),
        ({"history": [{"epoch": 1, "error": 10**400}]}, "run.json: history[0].error must be a finite number, not 1"),
        ({"history": [{"epoch": 1}]}, "run.json: history[0].error is missing"),
        ({"history": {}}, "run.json: history must be a list, not an object"),
        ({"history": [[]]}, "run.json: history[0] must be an object, not a list"),
        ({"sizes": {"a": {"epoch": 1, "error": 0, "x": 1}}}, "run.json: sizes['a'] has an unknown entry 'x'; known: "),
        ({"pair": [1]}, "run.json: pair must have 2 entries, not 1"),
        ({"pair": [1, "2"]}, "run.json: pair[1] must be a finite number, not '2'"),
        ({"name": 3}, "run.json: name must be text, not 3"),
        ({"name": ""}, "run.json: a run needs a name"),
        ({"exact": 1}, "run.json: exact must be true or false, not 1"),
        ({"loss": "mse"}, "run.json: loss must be one of 'ce', 'spread', not 'mse'"),
        ({"clip": "5"}, "run.json: clip must be a finite number, not '5'"),
        ({"names": ["x", 1]}, "run.json: names[1] must be text, not 1"),
        ({"step": 1.5}, "run.json: step must be an integer or text, not 1.5"),
        ({"colour": 1}, "run.json has an unknown entry 'colour'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_its_place(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        records.read(Record, changed(**entries), "run.json")
    assert str(refused.value).startswith(message)


def test_a_missing_entry_is_refused_even_where_the_dataclass_has_a_default() -> None:
    with pytest.raises(UsageError, match=r"^run\.json: step is missing$"):
        records.read(Record, {name: entry for name, entry in GOOD.items() if name != "step"}, "run.json")
    with pytest.raises(UsageError, match=r"^run\.json must be an object, not null$"):
        records.read(Record, None, "run.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ('[{"b": {"a": 1, "a": 1}}]', "the key 'a' appears twice"),
        ("[NaN]", "NaN is not a number in JSON"),
        ("[1e999]", "1e999 is too large a number"),
        ("[1] 2", "Extra data"),
        ("", "Expecting value"),
        ("[1" + "0" * 5000 + "]", "is not valid JSON"),
        ("[" * 200_000, "is not valid JSON"),
        ('["\\ud800"]', "is not UTF-8 text"),
        (b'["\xff"]', "is not UTF-8 text"),
    ],
)
def test_only_strict_json_is_parsed(text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=r"^run\.json is not") as refused:
        records.parse(text, "run.json")
    assert message in str(refused.value)


def test_texts_outside_ascii_are_kept() -> None:
    assert records.parse(b'["\xc3\xa4", "\\ud83d\\ude00"]') == ["ä", "\U0001f600"]
    assert records.parse("[1.5, 2, true, null]") == [1.5, 2, True, None]
