"""The limit registry: spec §3.5, §14, §14.1, D-75."""

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import spread

from veen.core import limits
from veen.core.errors import FieldSizeError, LimitError, MalformedError
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.tree.proof import MmrProof, PathStep

DEFAULTS: dict[str, Any] = {
    "max_msg_bytes": 1_048_576,
    "max_hdr_bytes": 16_384,
    "max_body_bytes": 1_048_320,
    "max_attachments_per_msg": 1_024,
    "max_attachment_bytes": 1_048_320,
    "max_chunk_bytes": 67_108_864,
    "max_checkpoint_interval": 1_024,
    "max_cap_rate_per_sec": 10_000,
    "max_cap_rate_burst": 20_000,
    "max_epoch_skew_sec": 60,
    "compression": "none",
}
# The maxima of spec §14 that a registry holds.
CEILINGS = ("max_msg_bytes", "max_hdr_bytes", "max_body_bytes", "max_attachments_per_msg")
AT_LEAST_ONE = ("max_msg_bytes", "max_chunk_bytes", "max_checkpoint_interval")
NUMBERS = [name for name in DEFAULTS if name != "compression"]


@pytest.mark.req("LIM-05")
def test_the_registry_has_every_bound_of_the_spec():
    """spec §14.1, with the defaults of D-75."""
    assert DEFAULT_LIMITS.to_json() == DEFAULTS
    assert DEFAULT_LIMITS == Limits() == Limits.from_json({})


@pytest.mark.req("LIM-05")
@pytest.mark.parametrize("name", DEFAULTS)
def test_a_registry_does_not_change(name):
    """spec §14.1: fixed for the lifetime of a hub process."""
    with pytest.raises(FrozenInstanceError):
        setattr(DEFAULT_LIMITS, name, 1)


@pytest.mark.req("LIM-07")
@pytest.mark.parametrize("name", CEILINGS)
def test_a_maximum_of_the_spec_cannot_be_raised(name):
    """spec §3.5: deployments may lower but must not raise."""
    with pytest.raises(LimitError) as caught:
        Limits.from_json({name: DEFAULTS[name] + 1})
    assert (caught.value.name, caught.value.actual, caught.value.maximum) == (name, DEFAULTS[name] + 1, DEFAULTS[name])
    with pytest.raises(LimitError):
        Limits.from_json({name: 2**63})


@pytest.mark.req("LIM-07")
@pytest.mark.parametrize("name", NUMBERS)
def test_every_bound_can_be_lowered(name):
    """spec §3.5: down to one less, half, and to nothing where nothing makes sense."""
    floor = 1 if name in AT_LEAST_ONE else 0
    for value in (DEFAULTS[name] - 1, DEFAULTS[name] // 2, floor):
        if name == "max_chunk_bytes" and value < 2_000_000:
            continue  # below one entry: see the test on chunks
        assert getattr(Limits.from_json({name: value}), name) == value


@pytest.mark.parametrize("name", AT_LEAST_ONE)
def test_some_bounds_must_not_be_zero(name):
    """spec §14.1: a hub that can accept nothing, or never seals a chunk, is a mistake."""
    with pytest.raises(MalformedError, match=name):
        Limits.from_json({name: 0})


def test_a_chunk_holds_at_least_the_largest_message():
    """spec §4.8.2: a chunk never exceeds its bound, so the largest entry must fit into one."""
    assert Limits(max_msg_bytes=1000, max_chunk_bytes=1512).max_chunk_bytes == 1512
    with pytest.raises(MalformedError, match="max_chunk_bytes"):
        Limits(max_msg_bytes=1000, max_chunk_bytes=1511)


@pytest.mark.req("LIM-06")
@given(st.fixed_dictionaries({}, optional={name: st.integers(1, 1_000) for name in NUMBERS if "chunk" not in name}))
def test_a_registry_is_exactly_its_configuration(config):
    """spec §14.1: a function of the file, through JSON and back."""
    registry = Limits.from_json(config)
    assert registry.to_json() == {**DEFAULTS, **config}
    assert Limits.from_json(json.loads(json.dumps(registry.to_json()))) == registry


@pytest.mark.parametrize("name", ["max_message_bytes", "MAX_MSG_BYTES", "", "ver", "max_witnesses"])
def test_an_unknown_limit_is_refused(name):
    """spec §14.1: a misspelt limit would silently not hold."""
    with pytest.raises(MalformedError, match="unknown limit"):
        Limits.from_json({name: 1})


@pytest.mark.parametrize("name", spread(NUMBERS, 3))
@pytest.mark.parametrize("value", [True, False, -1, 1.0, "1", None, [], {}, 2**64])
def test_a_limit_is_an_unsigned_integer(name, value):
    """D-07: also within 64 bits, or no journal record could carry it."""
    with pytest.raises((MalformedError, LimitError)):
        Limits.from_json({name: value})


def test_a_registry_is_an_object():
    """D-75"""
    for value in (None, [], 1, "max_msg_bytes", [("max_msg_bytes", 1)]):
        with pytest.raises(MalformedError, match="expected an object"):
            Limits.from_json(value)


def test_compression_is_none_or_zlib():
    """D-75"""
    assert Limits(compression="zlib").compression == "zlib"
    for value in ("", "None", "gzip", None, 0, ["none"]):
        with pytest.raises(MalformedError, match="compression"):
            Limits.from_json({"compression": value})


def test_bounds_of_single_objects_are_those_of_the_spec():
    """spec §14, D-37, D-49; each is shown at work in the test of its object."""
    assert limits.MAX_PROOF_PATH == 64
    assert limits.MAX_CAP_CHAIN == 8
    assert limits.MAX_CAP_STREAMS == 1_024
    assert limits.MAX_WITNESSES == 16
    assert {field.name for field in fields(Limits)} == set(DEFAULTS)


@pytest.mark.req("LIM-04")
def test_a_proof_has_at_most_64_steps():
    """spec §14; chains of tokens and lists of attachments are bounded in the tests of their own."""
    step = PathStep(dir=0, sib=bytes(32))
    longest = MmrProof(leaf_hash=bytes(32), path=(step,) * 64, peaks_after=())
    assert MmrProof.from_bytes(longest.to_bytes()) == longest
    with pytest.raises(FieldSizeError, match="0 to 64 elements, found 65"):
        MmrProof(leaf_hash=bytes(32), path=(step,) * 65, peaks_after=()).to_bytes()
