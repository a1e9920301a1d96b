"""A second reading of the rule of who speaks for whom: agreements, from the text of D-179 and with none of VEEN's code.

Everything is asked of the list of what stood before, again for each event; nothing is kept but lists and dicts. It is
slow and short, and it is right or wrong for other reasons than `veen.overlays.framework.speaking`.
"""

from functools import cache
from hashlib import sha256
from typing import Any

import cbor2
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

DAY_AND_TEN_MINUTES = 87_000


def ht(tag, data):
    return sha256(tag.encode() + b"\0" + data).digest()


BIND, END, NEXT, CARD = (
    sha256(name).digest()
    for name in (b"veen.speaks.v1", b"veen.speaks.end.v1", b"veen.principal.next.v1", b"veen.card.v1")
)
DEFINE, CONFIRM = (
    sha256(b"veen/schema:" + name).digest() for name in (b"agreement.definition.v1", b"agreement.confirmation.v1")
)


@cache  # random histories repeat few statements
def signed(key, digest, signature):
    try:
        VerifyKey(key).verify(digest, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def listed(body, *names):
    return cbor2.dumps([body.get(name) for name in names])


class Reader:
    """Everything that was read of one stream so far, in order."""

    def __init__(self, stream, realms=()):
        self.stream, self.realms = stream, realms
        self.bindings, self.ends, self.nexts, self.cards, self.spent = [], [], [], [], []

    # --- questions about what stands before ------------------------------------------------------------------

    def binding(self, key):
        for number, body in enumerate(self.bindings):
            if body["client_id"] == key:
                return number, body
        return None

    def forebears(self, principal):
        """The principals whose place this one took, directly or through others."""
        names: set[bytes] = set()
        while True:
            more = {body["old"] for body in self.nexts if body["new"] == principal or body["new"] in names} - names
            if not more:
                return names
            names |= more

    def speaks_for(self, event):
        """The set of names and None, or an empty set and the code."""
        key = event["client_id"]
        if any(earlier["old"] == key for earlier in self.nexts):
            return set(), "SPEAKS.ENDED"
        if (place := self.binding(key)) is None:
            return {key}, None
        number, body = place
        principal = body["principal_pk"]
        for end in self.ends:
            if end["client_id"] == key and principal in {end["principal_pk"], *self.forebears_at(end)}:
                return set(), "SPEAKS.ENDED"
            if end["client_id"] is None and end["principal_pk"] == principal and number < end["bindings"]:
                return set(), "SPEAKS.ENDED"
        if not body["not_before"] <= event["ts"] <= body["not_after"]:
            return set(), "SPEAKS.TIME"
        persons = {principal} | self.forebears(principal)
        names = {key} | persons | {other["client_id"] for other in self.bindings if other["principal_pk"] in persons}
        return names | {ht("id/ctx", person + realm) for person in persons for realm in self.realms}, None

    @staticmethod
    def forebears_at(end):
        return end["forebears"]

    # --- statements ------------------------------------------------------------------------------------------

    def take(self, event):
        """The code for which a statement has no effect, or None."""
        kind, body = event["schema"], cbor2.loads(event["body"])
        if kind == CARD:
            return self.take_card(event["client_id"], body[2])
        if body["stream_id"] != self.stream:
            return "SPEAKS.STREAM"
        return {BIND: self.take_binding, END: self.take_end, NEXT: self.take_next}[kind](body)

    def take_card(self, sender, card):
        digest = ht("veen/card", cbor2.dumps({number: value for number, value in card.items() if number != 6}))
        if card[4] == sender and signed(card[2], digest, card[6]):
            self.cards.append((sender, card[2]))

    def take_binding(self, body):
        key, principal = body["client_id"], body["principal_pk"]
        digest = ht("veen/speaks", listed(body, "principal_pk", "client_id", "stream_id", "not_before", "not_after"))
        if not (signed(key, digest, body["sig_client"]) and signed(principal, digest, body["sig_principal"])):
            return "SPEAKS.SIG"
        if not 0 < body["not_after"] - body["not_before"] <= DAY_AND_TEN_MINUTES:
            return "SPEAKS.LIFETIME"
        if self.binding(key) is not None:
            return "SPEAKS.BOUND"
        said = [identity for sender, identity in self.cards if sender == key]
        if said and said[0] not in {principal} | self.forebears(principal):
            return "SPEAKS.CARD"
        if any(earlier["old"] == principal for earlier in self.nexts):
            return "SPEAKS.ENDED"
        self.bindings.append(body)
        return None

    def take_end(self, body):
        key, principal = body.get("client_id"), body["principal_pk"]
        digest = ht("veen/speaks-end", listed(body, "principal_pk", "client_id", "stream_id", "reason", "ended_at"))
        if not signed(principal, digest, body["sig_principal"]):
            return "SPEAKS.SIG"
        forebears = set()
        if key is None:
            if digest in self.spent:
                return "SPEAKS.ENDED"
            self.spent.append(digest)
        elif (place := self.binding(key)) is not None:
            forebears = self.forebears(principal)
            if place[1]["principal_pk"] not in {principal} | forebears:
                return "SPEAKS.OWNER"
        end = {"principal_pk": principal, "client_id": key, "bindings": len(self.bindings), "forebears": forebears}
        self.ends.append(end)
        return None

    def take_next(self, body):
        old, new = body["old"], body["new"]
        digest = ht("veen/principal-next", listed(body, "old", "new", "stream_id"))
        if not (signed(old, digest, body["sig_old"]) and signed(new, digest, body["sig_new"])):
            return "SPEAKS.SIG"
        if any(earlier["old"] == old for earlier in self.nexts) or new == old or new in self.forebears(old):
            return "SPEAKS.BOUND"
        self.nexts.append(body)
        return None


def fold_agreements(events, realms=()):
    """Definitions, decisions and codes of the events of one or more streams, as `AgreementFold` should have them."""
    readers: dict[bytes, Reader] = {}
    definitions: dict[Any, Any] = {}
    decisions: dict[Any, Any] = {}
    codes: list[tuple[bytes, int, str]] = []
    for event in events:
        reader = readers.setdefault(event["stream_id"], Reader(event["stream_id"], realms))
        try:
            code = step(reader, event, definitions, decisions)
        except (cbor2.CBORError, KeyError, TypeError, ValueError, AttributeError):
            code = "OVL"  # it cannot be read: the framework says how
        if code is not None:
            codes.append((event["label"], event["stream_seq"], code))
    return definitions, decisions, sorted(codes)


def step(reader, event, definitions, decisions):
    if event["schema"] in (BIND, END, NEXT, CARD):
        return reader.take(event)
    body = cbor2.loads(event["body"])
    agreement = body["agreement_id"]
    if event["schema"] == DEFINE and not body["parties"]:
        raise ValueError
    if event["schema"] == CONFIRM:
        _ = body["party_identity"], body["decision"]
    names, code = reader.speaks_for(event)
    if code is not None:
        return code
    bound = reader.binding(event["client_id"])
    canonical = event["client_id"] if bound is None else bound[1]["principal_pk"]
    if event["schema"] == DEFINE:
        return define(agreement, body, names, canonical, definitions)
    version, party = body["version"], body["party_identity"]
    if (agreement, version) not in definitions:
        return "AGREE.UNKNOWN"
    if party not in definitions[agreement, version]["parties"]:
        return "AGREE.PARTY"
    if party not in names:
        return "AGREE.SPEAKER"
    decisions[agreement, version, party] = body["decision"]
    return None


def define(agreement, body, names, canonical, definitions):
    versions = [version for identifier, version in definitions if identifier == agreement]
    if versions:
        if body["version"] in versions:
            return "AGREE.DUPLICATE"
        if body["version"] < max(versions):
            return "AGREE.VERSION"
        before = definitions[agreement, max(versions)]
        if not names & {before["definer"], *before["parties"]}:
            return "AGREE.OWNER"
    definitions[agreement, body["version"]] = {"definer": canonical, "parties": body["parties"]}
    return None
