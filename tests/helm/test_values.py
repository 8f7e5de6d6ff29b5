"""Every value has a meaning, a place in the schema and an effect that shows in what is rendered."""

import json
import re
from typing import get_args, get_type_hints

import msgspec
import pytest

from taskmesh.config import SECTIONS
from tests.helm.effects import EFFECTS, Effect
from tests.helm.rendering import CHART, MINIMAL, chart, laid_over, rendered, tree, values_of


def parameters() -> list[str]:
    return re.findall(r"## @param (\S+)", (CHART / "values.yaml").read_text())


def test_every_value_has_a_row():
    assert sorted(effect.parameter for effect in EFFECTS) == sorted(parameters())


def test_every_value_is_described():
    named = set(parameters())

    def leaves(part: dict, path: tuple[str, ...] = ()) -> list[str]:
        found = []
        for key, value in part.items():
            here = (*path, key)
            if isinstance(value, dict) and ".".join(here) not in named:
                found += leaves(value, here)
            else:
                found.append(".".join(here))
        return found

    assert sorted(leaves(values_of(CHART / "values.yaml"))) == sorted(named)


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.parameter)
def test_value_has_its_effect(effect: Effect):
    without = laid_over(MINIMAL, effect.given)
    set_to = laid_over(laid_over(without, effect.along), tree(effect.parameter, effect.value))

    assert effect.shows(rendered(set_to))
    assert not effect.shows(rendered(without))


@pytest.mark.parametrize("parameter", parameters())
def test_the_schema_refuses_a_misspelt_neighbour(parameter: str):
    path, _, last = parameter.rpartition(".")
    misspelt = tree(".".join(filter(None, [path, f"{last}x"])), "value")

    with pytest.raises(Exception, match=rf"{re.escape(last)}x"):
        chart().validate_schema(laid_over(MINIMAL, misspelt))


def schema_of(kind: object) -> dict:
    """What the chart's schema says of a setting of taskmesh.toml."""
    rule = msgspec.json.schema(kind)
    if "bytes" in rule.get("description", ""):
        return {"$ref": "#/$defs/size"}
    if "enum" in rule:
        return {"enum": list(get_args(kind))}
    return {word: rule[word] for word in ("type", "items", "minimum") if word in rule}


def test_the_schema_knows_every_setting_and_its_type():
    """Nonsense in `config` came to light when the hub did not start."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    sections = {
        section: {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: schema_of(kind) for name, kind in get_type_hints(owner, include_extras=True).items()
            },
        }
        for section, owner in SECTIONS.items()
    }

    told = json.dumps(sections, indent=2)
    assert schema["properties"]["config"]["properties"] == sections, f"put this there:\n{told}"
