# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas of the supported keywords, values that they admit, and spoiled ones."""
import datetime
import ipaddress
import json
import re
import uuid

NAMES = ["a", "ab", "name", "count", "tags", "é", "x y", "q\"t", "next"]
STRINGS = ["", "a", "abc", "é日", "😀", "line\nbreak", "quote\"", "back\\slash", "\u0001", "zzzzzz"]
PATTERNS = [("^[a-c]{2,4}$", ["ab", "ccc"]), ("^\\d+-x?$", ["12-", "3-x"]), ("b+", ["abb", "b"]),
            ("^(yes|no)$", ["yes", "no"])]
FORMATS = {"date": ["2024-02-29", "1999-12-31"], "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
           "ipv4": ["10.0.255.1"], "time": ["23:59:59Z", "00:00:00.25+01:00"],
           "date-time": ["2024-02-29T01:02:03Z"]}
NONE = object()  # no value was found


def formats(jsonschema):
    """A checker of the formats that the grammars honour."""
    checker = jsonschema.FormatChecker(formats=[])

    @checker.checks("date", ValueError)
    def date(text):
        return not isinstance(text, str) or bool(datetime.date.fromisoformat(text)) and len(text) == 10

    @checker.checks("uuid", ValueError)
    def identifier(text):
        return not isinstance(text, str) or str(uuid.UUID(text)) == text.lower()

    @checker.checks("ipv4", ValueError)
    def address(text):
        return not isinstance(text, str) or bool(ipaddress.IPv4Address(text))

    def clock(text):
        hours, minutes, rest = text.split(":", 2)
        zone = rest.rstrip("Z") if rest.endswith("Z") else rest[:-6]
        if not rest.endswith("Z"):
            offset = rest[-6:]
            if offset[0] not in "+-" or offset[3] != ":" or not (int(offset[1:3]) < 24 and int(offset[4:]) < 60):
                raise ValueError(text)
        return len(hours) == len(minutes) == 2 and int(hours) < 24 and int(minutes) < 60 \
            and len(zone.split(".")[0]) == 2 and 0 <= float(zone) < 60

    @checker.checks("time", (ValueError, IndexError))
    def time(text):
        return not isinstance(text, str) or clock(text)

    @checker.checks("date-time", (ValueError, IndexError))
    def moment(text):
        return not isinstance(text, str) or date(text[:10]) and text[10] == "T" and clock(text[11:])

    return checker


def judge(jsonschema, schema):
    """A function that says whether a value is valid, by the draft that the schema names, or 2020-12; formats
    too."""
    draft = jsonschema.Draft202012Validator
    if isinstance(schema, dict):
        draft = jsonschema.validators.validator_for(schema, default=draft)

    def pattern(_, expression, instance, __):
        """As the standard has it, by ECMA-262: \\d is ASCII, and $ is the end, not before a last newline."""
        expression = expression.replace("$", "\\Z")  # no pattern here has another $
        if isinstance(instance, str) and not re.search(expression, instance, re.ASCII):
            yield jsonschema.ValidationError("pattern")
    draft = jsonschema.validators.extend(draft, {"pattern": pattern})
    return draft(schema, format_checker=formats(jsonschema)).is_valid


def spellings(value):
    """As programs write it: compact, Python's default, indented."""
    return [json.dumps(value, ensure_ascii=False, separators=(",", ":")),
            json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, indent=2)]


def schema(rng, depth=0, defs=None):
    """A random schema; at the top perhaps with definitions that refer to themselves."""
    if depth == 0 and rng.random() < 0.4:
        defs = {"d": None}
        defs["d"] = {"type": "object", "properties": {"v": schema(rng, 3), "next": {"anyOf": [
            {"$ref": "#/$defs/d"}, {"type": "null"}]}}, "required": ["v"], "additionalProperties": False}
        return {**schema(rng, 1, defs), "$defs": defs}
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const"]
    if depth < 3:
        kinds += ["array", "object", "object", "anyOf", "tuple", "oneOf"]
    if defs:
        kinds += ["ref", "ref"]
    return globals()["make_" + rng.choice(kinds).lower()](rng, depth, defs)


def make_ref(rng, depth, defs):
    return {"$ref": "#/$defs/d"}


def make_integer(rng, depth, defs):
    made = {"type": "integer"}
    low = rng.randint(-1200, 1200)
    if rng.random() < 0.5:
        made[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.5:
        made[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randint(2, 3000)
    return made


def make_number(rng, depth, defs):
    return {**make_integer(rng, depth, defs), "type": "number"}


def make_string(rng, depth, defs):
    made, what = {"type": "string"}, rng.random()
    if what < 0.4:
        made["minLength"] = rng.randint(0, 3)
        made["maxLength"] = rng.randint(3, 12)
    elif what < 0.6:
        made["pattern"] = rng.choice(PATTERNS)[0]
    elif what < 0.75:
        made["format"] = rng.choice(list(FORMATS))
    return made


def make_boolean(rng, depth, defs):
    return {"type": "boolean", "description": "yes or no"}


def make_null(rng, depth, defs):
    return {"type": ["null"]}


def make_enum(rng, depth, defs):
    values = [1, -5, "x", "é\"", None, True, 2.5, [1, "a"], {"k": [None]}, "xy"]
    return {"enum": rng.sample(values, rng.randint(1, 5))}


def make_const(rng, depth, defs):
    return {"const": rng.choice([0, "c", {"a": 1, "b": []}, None])}


def make_array(rng, depth, defs):
    made = {"type": "array", "items": schema(rng, depth + 1, defs)}
    if rng.random() < 0.5:
        made["minItems"] = rng.randint(0, 2)
    if rng.random() < 0.5:
        made["maxItems"] = rng.randint(2, 5)
    return made


def make_tuple(rng, depth, defs):
    made = {"type": "array", "prefixItems": [schema(rng, depth + 1, defs) for _ in range(rng.randint(1, 3))]}
    made["items"] = rng.choice([False, {"type": "integer"}])
    if rng.random() < 0.5:
        made["minItems"] = rng.randint(0, len(made["prefixItems"]))
    return made


def make_object(rng, depth, defs):
    names = rng.sample(NAMES, rng.randint(0, 5))
    made = {"type": "object", "properties": {name: schema(rng, depth + 1, defs) for name in names}}
    made["required"] = [name for name in names if rng.random() < 0.5]
    if rng.random() < 0.6:
        made["additionalProperties"] = rng.choice([False, {"type": "integer"}, True])
    return made


def make_anyof(rng, depth, defs):
    return {"anyOf": [schema(rng, depth + 1, defs) for _ in range(rng.randint(1, 3))]}


def make_oneof(rng, depth, defs):
    kinds = [make_integer, make_string, make_boolean, make_null]
    return {"oneOf": [make(rng, depth, defs) for make in rng.sample(kinds, rng.randint(1, 3))]}


def text(rng, least, most):
    """A string of so many code points."""
    letters = "".join(STRINGS) + "mnop"
    return "".join(rng.choice(letters) for _ in range(rng.randint(least, most)))


def number(rng, made, whole):
    low, high = made.get("minimum", -3000), made.get("maximum", 6000)
    low = max(low, made.get("exclusiveMinimum", -3000) + 1)
    high = min(high, made.get("exclusiveMaximum", 6000) - 1)
    some = rng.randint(low, high) if whole or rng.random() < 0.4 else low + rng.randint(0, (high - low) * 4) / 4
    return int(some) if some == int(some) else some  # a grammar writes integers without fraction


def value(rng, made, top, depth=0):
    """A value that the schema admits, its properties in the schema's order; NONE: none was found."""
    if "$ref" in made:
        return value(rng, top["$defs"]["d"], top, depth + 1)
    if "enum" in made:
        return rng.choice(made["enum"])
    if "const" in made:
        return made["const"]
    for union in ("anyOf", "oneOf"):
        if union in made:
            return value(rng, made[union][-1] if depth > 6 else rng.choice(made[union]), top, depth + 1)
    kind = made["type"] if isinstance(made["type"], str) else made["type"][0]
    if kind in ("integer", "number"):
        return number(rng, made, kind == "integer")
    if kind == "string":
        if "pattern" in made:
            return rng.choice(dict(PATTERNS)[made["pattern"]])
        if "format" in made:
            return rng.choice(FORMATS[made["format"]])
        return text(rng, made.get("minLength", 0), made.get("maxLength", 8))
    if kind == "array":
        return items(rng, made, top, depth)
    if kind == "object":
        return members(rng, made, top, depth)
    return rng.choice([True, False]) if kind == "boolean" else None


def items(rng, made, top, depth):
    first = made.get("prefixItems", [])
    least, most = made.get("minItems", 0), made.get("maxItems", len(first) + 3)
    if made["items"] is False:
        most = min(most, len(first))
    count = least if depth > 6 else rng.randint(least, max(least, most))
    every = [value(rng, first[i] if i < len(first) else made["items"], top, depth + 1) for i in range(count)]
    return NONE if NONE in every else every


def members(rng, made, top, depth):
    every = {}
    for name, part in made["properties"].items():
        if name in made["required"] or (depth < 6 and rng.random() < 0.6):
            every[name] = value(rng, part, top, depth + 1)
    more = made.get("additionalProperties", True)
    if more is not False and rng.random() < 0.4:
        every["other " + text(rng, 0, 3)] = rng.randint(0, 9)
    return NONE if NONE in every.values() else every


def spoil(rng, whole):
    """The value with one part changed, added or left out; perhaps it is still valid."""
    if isinstance(whole, dict) and whole and rng.random() < 0.7:
        name = rng.choice(list(whole))
        if rng.random() < 0.4:
            return {k: v for k, v in whole.items() if k != name}
        return {k: spoil(rng, v) if k == name else v for k, v in whole.items()}
    if isinstance(whole, list) and whole and rng.random() < 0.7:
        i = rng.randrange(len(whole))
        if rng.random() < 0.3:
            return whole + [whole[i]]
        return whole[:i] + [spoil(rng, whole[i])] + whole[i + 1:]
    if isinstance(whole, dict):
        return {**whole, "zz extra": "x"}
    return rng.choice([-4000, 7000, 0.125, "spoiled text", "", None, True, [], {}])



# Schemas that combine others.  What candidates of these are valid, and in which spelling, is left to
# the judge, so a maker returns a schema and values that are valid or nearly so.

def combined(rng):
    return globals()["combine_" + rng.choice(["numbers", "strings", "objects", "objects", "values", "arrays"])](rng)


def decimal(rng, low=-40, high=40):
    some = rng.choice([rng.randint(low, high), rng.randint(low * 4, high * 4) / 4,
                       rng.randint(low * 1000, high * 1000) / 1000])
    return int(some) if some == int(some) else some


def combine_numbers(rng):
    def part():
        made = {}
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if rng.random() < 0.3:
                made[keyword] = decimal(rng, -40, 15) if "Min" in keyword or "min" in keyword else decimal(rng, -15, 40)
        if rng.random() < 0.2:
            made["multipleOf"] = rng.choice([1, 2, 3, 7, 10])
        return made
    parts = [part() for _ in range(rng.randint(1, 3))]
    top = {"type": rng.choice(["integer", "number", "number"]), **part()}
    made = rng.choice([{**top, "allOf": parts}, {**top, "not": parts[0]}, {**top, "anyOf": parts},
                       {**top, "oneOf": parts}, {**top, "if": parts[0], "then": parts[-1], "else": part()}])
    near = [each for some in [top] + parts for key, each in some.items() if key not in ("type", "multipleOf")]
    near += [each + step for each in near for step in (-1, 1)]
    values = [decimal(rng) for _ in range(12)] + near + ["5", None]
    return made, [round(v, 6) if isinstance(v, float) else v for v in values]


def combine_strings(rng):
    def part():
        return rng.choice([
            {"pattern": rng.choice(["^[ab]*$", "b", "^a", "c$", "^(ab|c)+$", "^[^é]*$", "é|\\d", "^[^1]{2}"])},
            {"minLength": rng.randint(0, 3)}, {"maxLength": rng.randint(1, 4)},
            {"enum": rng.sample(["a", "ab", "abc", "é", "b\"", "1"], 3)}, {"const": rng.choice(["ab", "c"])}])
    parts = [part() for _ in range(rng.randint(1, 3))]
    top = rng.choice([{"type": "string"}, {"type": "string", **part()}, {"type": ["string", "null"]}, {}])
    more = rng.choice([{"allOf": parts}, {"not": parts[0]}, {"allOf": [{"not": each} for each in parts]},
                       {"anyOf": parts}, {"if": parts[0], "then": parts[-1], "else": part()},
                       {"oneOf": parts[:2]}, {"not": {"anyOf": parts}}])
    words = ["".join(rng.choice("abcé1\"") for _ in range(rng.randint(0, 5))) for _ in range(24)]
    return {**top, **more}, words + ["a", "ab", "abc", "c", "é", "b\"", "1", "", None, 3]


def combine_objects(rng):
    names = ["a", "ab", "b", "x1", "é"]
    kinds = [{"type": "integer"}, {"type": "string"}, {"enum": [1, "s", None]}, {"const": 1}, {},
             {"type": ["integer", "null"], "minimum": 0}, False]
    top = {"type": "object", "properties": {name: rng.choice([{}, kinds[0], kinds[1], kinds[4]]) for name in names}}

    def part():
        some = rng.sample(names, 2)
        return rng.choice([
            {"required": some}, {"properties": {some[0]: rng.choice(kinds)}},
            {"properties": {some[0]: {"const": 1}}, "required": some[:1]},
            {"properties": {name: rng.choice(kinds) for name in some}},
            {"maxProperties": rng.randint(0, 4)}, {"minProperties": rng.randint(0, 2)}])

    def firm():
        """Parts that cannot be negated."""
        some = rng.sample(names, 2)
        return rng.choice([
            {"patternProperties": {"^a": rng.choice(kinds)}},
            {"patternProperties": {"^a": rng.choice(kinds[:4]), "[b1]$": {"type": ["integer", "string"]}}},
            {"dependentRequired": {some[0]: [some[1]]}}, {"dependentSchemas": {some[0]: part()}},
            {"propertyNames": rng.choice([{"pattern": "^[a-bx]"}, {"maxLength": 2}, {"enum": names[:3]}])},
            {"additionalProperties": rng.choice([{"type": "integer"}, {"const": "s"}])}])
    parts = [part() for _ in range(rng.randint(1, 2))]
    more = rng.choice([{"allOf": parts + [firm()]}, {"not": parts[0]}, {"anyOf": parts + [firm()]},
                       {"if": parts[0], "then": firm(), "else": parts[-1]}, {"oneOf": parts}, firm()])
    if rng.random() < 0.5:
        top["additionalProperties"] = rng.choice([False, {"type": "integer"}])
    if rng.random() < 0.3:
        top["$ref"] = "#/$defs/d"
        top["$defs"] = {"d": part()}
    values = []
    for _ in range(24):
        value = {name: rng.choice([1, 2, -1, "s", "t", None]) for name in names if rng.random() < 0.5}
        for name in ("abc", "zz", "b1"):
            if rng.random() < 0.15:
                value[name] = rng.choice([1, "s"])
        values.append(value)
    return {**top, **more}, values + [{}, []]


def combine_values(rng):
    pool = [0, 1, 2.5, -3, "a", "ab", None, True, False, [1], [1, 2], {"k": 1}, {"k": "v", "l": 2}]
    parts = [{"type": rng.choice(["integer", "string", "array", "object"])}, {"minimum": rng.choice([0, 1.5])},
             {"maxItems": 1}, {"required": ["l"]}, {"not": {"enum": [1, "a", None]}}, {"not": {"const": True}},
             {"enum": rng.sample(pool, 5)}, {"pattern": "b"}, {"properties": {"k": {"type": "integer"}}}]
    some = rng.sample(parts, rng.randint(1, 3))
    made = {"enum": rng.sample(pool, rng.randint(3, 9))}
    return rng.choice([{**made, "allOf": some}, {"allOf": [made] + some}, {"allOf": [{"not": {
        "enum": [v for v in made["enum"] if not isinstance(v, (list, dict))]}}, {"type": [
            "integer", "boolean", "null", "string"]}]}]), pool


def combine_arrays(rng):
    def part():
        return rng.choice([{"minItems": rng.randint(0, 2)}, {"maxItems": rng.randint(1, 3)},
                           {"items": {"type": ["integer", "string"]}}, {"items": {"minimum": 2, "maxLength": 1}},
                           {"prefixItems": [{"type": "integer"}, {"type": "string"}]},
                           {"prefixItems": [{}, {"const": "s"}], "items": {"type": "string"}}])
    parts = [part() for _ in range(rng.randint(1, 3))]
    values = [[rng.choice([1, 2, 3, "s", "t", "long"]) for _ in range(rng.randint(0, 4))] for _ in range(24)]
    return {"type": "array", **part(), "allOf": parts}, values
