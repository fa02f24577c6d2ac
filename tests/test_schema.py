"""The JSON schema of reports: what is written obeys it, what it forbids is found; reports come back whole."""

from __future__ import annotations

import copy
import dataclasses
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from lnverify.case import Case
from lnverify.finding import Finding, Observation, Report, Result, load_report, report_from_json
from lnverify.protocol import GRAD_MODES, LAYOUTS, Response
from lnverify.reports import json_file
from lnverify.transcript import response_to_json
from tests import report_samples as samples

SCHEMA = json.loads(files("lnverify").joinpath("schemas/report-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def written(*reports: Report) -> Any:
    return json.loads(json_file.text(reports))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "reports",
    [
        (samples.report(),),
        (samples.violated(),),
        (samples.undecided(),),
        (samples.violated(), samples.report()),
    ],
    ids=["holds", "violated", "inconclusive", "two"],
)
def test_what_is_written_obeys_the_schema(reports: tuple[Report, ...]) -> None:
    VALIDATOR.validate(written(*reports))


def test_infinities_nan_large_arrays_and_every_mode_obey_the_schema() -> None:
    seen = samples.observation(
        samples.case(
            shape=(2, 4096), label="N=4096", recipe={"seed": 1}, threads=2, grad_mode="no_grad", train=False,
            requires_grad=(), layouts={"x": "offset"},
        ),
        "y", (0, 0), float("nan"), float("inf"), ratio=float("inf"),
    )  # fmt: skip
    assert "bits" not in seen.case["arrays"]["x"]
    answer = response_to_json(Response({"y": samples.case().arrays["x"]}, changed=("x",)))
    entry = {"request": "0" * 64, "response": answer}
    seen = dataclasses.replace(seen, base=samples.case().to_json(), transcript=(entry,))
    found = samples.finding("MY-LAW", "own", seen, verdict="crashed")
    data = written(samples.report(findings=[found]))
    VALIDATOR.validate(data)
    assert data["findings"][0]["smallest_case"]["got"] == "nan"
    assert data["findings"][0]["worst_ratio"] == "inf"


CHANGES: dict[str, Any] = {
    "an unknown key": lambda r: r.update(extra=1),
    "a missing verdict": lambda r: r.pop("verdict"),
    "another schema": lambda r: r.update(schema="lnverify-report/2"),
    "an unknown verdict": lambda r: r["results"][0].update(verdict="passed"),
    "a result without its law": lambda r: r["results"][0].pop("law"),
    "a negative count": lambda r: r["results"][0].update(examples=-1),
    "a finding that holds": lambda r: r["findings"][0].update(verdict="holds"),
    "an id that is no hash": lambda r: r["findings"][0].update(id="XYZ"),
    "bits that are no bits": lambda r: r["findings"][0]["outputs"]["dweight"].update(bits=["0x1"]),
    "an unknown layout": lambda r: r["findings"][0]["smallest_case"]["case"].update(layouts={"x": "sparse"}),
    "a number as text": lambda r: r["findings"][0]["worst_case"].update(got="12"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_schema_finds(name: str) -> None:
    data = copy.deepcopy(written(samples.violated()))
    CHANGES[name](data)
    assert not VALIDATOR.is_valid(data)


def test_the_schema_names_what_the_code_writes() -> None:
    """Keys and words of the schema are those of the classes, so that neither changes without the other."""
    seen = samples.observation(samples.case(), "y", (0, 0), 1.0, 2.0)
    found: Finding = samples.finding("LN101", "forward-accuracy", seen)
    result: Result = samples.result("LN101", "forward-accuracy")
    for name, value in {
        "report": samples.report().to_json(), "result": result.to_json(), "finding": found.to_json(),
        "observation": seen.to_json(), "case": samples.case().to_json(),
        "array": samples.case().arrays["x"].to_json(), "response": response_to_json(Response()),
    }.items():  # fmt: skip
        assert set(SCHEMA["$defs"][name]["properties"]) == set(value), name
    case = SCHEMA["$defs"]["case"]["properties"]
    assert tuple(case["layouts"]["additionalProperties"]["enum"]) == LAYOUTS
    assert tuple(case["grad_mode"]["enum"]) == GRAD_MODES


def test_a_report_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json_file.text([samples.violated(), samples.undecided()]))
    back = load_report(path)
    assert [r.to_json() for r in back] == [samples.violated().to_json(), samples.undecided().to_json()]
    assert [r.exit_status for r in back] == [1, 3]


def test_a_case_comes_back_bit_for_bit() -> None:
    x = np.array([[-0.0, np.nan, 5e-324]])
    case = samples.case("float64", (1, 3), x=x, threads=2, layouts={"dy": "expanded"})
    seen: Observation = samples.observation(case, "y", (0, 0), 1.0, 2.0)
    found = samples.finding("LN101", "forward-accuracy", seen)
    data = json.loads(json.dumps(samples.report(findings=[found]).to_json()))
    back = Case.from_json(report_from_json(data).findings[0].smallest.case)
    assert back.arrays["x"].bits.tolist() == case.arrays["x"].bits.tolist()
    assert (back.threads, back.layouts, back.eps) == (2, {"dy": "expanded"}, 1e-5)
