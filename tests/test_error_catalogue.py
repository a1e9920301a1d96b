"""The catalogue of errors: every code has its row, every row is of use, and its words can be followed."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import veen
from tests.cases import every
from tests.cli.test_explain import texts
from veen.cli.shared.failures import failure_of
from veen.cli.shared.output import Exit
from veen.core.catalogue import BLAMES, ErrorRow, catalogue, details_of, row_of
from veen.core.errors import RETIRED_CODES, ApiCode, Refusal, VeenError

SOURCE = Path(veen.__file__).parent
FILE = SOURCE / "core" / "errors.toml"
ROWS = list(catalogue().values())
FAMILIES = (
    "E|AGB|VESN|OVL|STATE|KV|CRUD|QUEUE|CRDT|RPC|ID|WAL|AGREE|DELEG|GRANT|LCLASS|META|MIRR|PAID|PUB|QAUD|RECOV"
    "|REVOKE|SDR|SNAP|SPEAKS|REALM|POLICY|ANCHOR|DISC|CONNECT"
)
CODE = re.compile(rf"\b(?:{FAMILIES})\.[A-Z][A-Z_]*(?:\.[A-Z][A-Z_]*)*\b")

# Phrases that hint at a fault instead of naming it. Texts say what happened, why, and what to do next.
RIDDLES = re.compile(
    r"should be\b|as (?:it|they) must|do what it must|must not happen|says no\b|does not hold\b|two stories|dishonest"
    r"|cheat|convict|foresaw|'s word\b|for nothing|to nobody|of nothing|says? nothing|(?:is|not) whole\b|is over\b"
    r"|goes by\b|somebody was faster|and still|whom to believe|at hand\b|of use\b"
)


@cache
def strings() -> dict[str, str]:
    """Every string of the source that is no docstring, and a file in which it stands."""
    return {text: path.name for path in sorted(SOURCE.rglob("*.py")) for text in texts(path)}


@cache
def error_classes() -> list[type[VeenError]]:
    """Every class of errors of ours that can be imported here."""
    for module in pkgutil.walk_packages(veen.__path__, "veen."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as exc:  # an extra that is not installed
                if (exc.name or "").startswith("veen"):
                    raise

    def below(kind: type[VeenError]) -> set[type[VeenError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    return sorted((kind for kind in below(VeenError) if kind.__module__.startswith("veen.")), key=str)


def test_every_code_that_the_source_names_has_a_row():
    used = {code: place for text, place in strings().items() for code in CODE.findall(text)}
    assert {"E.SEQ", "E.LOCAL.PASSPHRASE", "E.CONFIG", "OVL.AMBIGUOUS", "ID.AUTH_ROLE", "WAL.FROZEN"} <= used.keys()
    assert {code for code in used if code not in catalogue()} == set(RETIRED_CODES)


def test_every_row_is_reached_by_the_source():
    used = {word for text in strings() for word in re.findall(r"[A-Za-z_.]+", text)}
    used |= {word.strip(".") for word in used}
    assert [row.code for row in ROWS if row.code not in used] == []


def test_every_answer_of_a_hub_has_its_row():
    """The admission table and the API's codes have code and status; the row adds the words."""
    for refusal in Refusal:
        row = catalogue()[refusal.detail_enum]
        assert (row.part_of, row.http_status) == (refusal.code, refusal.http_status)
        assert row.message
        assert row in details_of(refusal.code)
        assert row_of(f"{refusal.code}/{refusal.detail_enum}") == row
    for code in ApiCode:
        assert catalogue()[code.code].http_status == code.http_status


@pytest.mark.req("ERR-09")
def test_names_of_older_documents_are_understood():
    """D-55."""
    for retired, refusal in RETIRED_CODES.items():
        assert row_of(retired) == row_of(refusal.detail_enum)


@every(ROWS, lambda row: row.code)
def test_a_row_says_what_happened_why_and_what_to_do(row: ErrorRow):
    assert row.blame in BLAMES
    assert Exit(row.exit_status) is not Exit.OK
    assert row.part_of is None or row.part_of in catalogue()
    assert len(row.means) <= 100
    assert not row.means.endswith(".")
    for sentence in (row.because, *row.fixes):
        assert re.match(r"[A-Z`'(]|[a-z_]+_[a-z]+ ", sentence), sentence
        assert sentence.endswith((".", ")")), sentence
    assert row.spec
    assert row.fixes
    for page in re.findall(r"docs/[a-z]+\.md", row.spec):
        assert (SOURCE.parents[1] / page).is_file(), page
    assert not [text for text in (row.means, row.because, row.message, *row.fixes) if RIDDLES.search(text)]


def test_blame_and_exit_status_agree():
    """Exit status 1 accuses somebody else's bytes, 3 the way to the hub; a caller's own mistake is neither."""
    for row in ROWS:
        assert (row.exit_status == Exit.NETWORK) >= (row.blame == "network"), row
        assert row.exit_status not in (Exit.BAD_EVIDENCE, Exit.NETWORK) or row.blame != "you", row
        assert row.code.startswith("E.DIVERGED") <= ((row.blame, row.exit_status) == ("hub", Exit.BAD_EVIDENCE)), row


def test_what_is_shared_is_used_by_several_rows_and_no_row_repeats_its_family():
    import tomllib

    tables = tomllib.loads(FILE.read_text("utf-8"))
    families, shared = tables.pop("family"), tables.pop("shared")
    fixes = [fix for table in tables.values() for fix in table["fixes"]]
    assert {name for name in shared if fixes.count(f"@{name}") < 2} == set()
    written = [fix for fix in fixes if not fix.startswith("@")]
    assert {fix for fix in written if fix in shared.values()} == set()
    for code, table in tables.items():
        family = families[max((prefix for prefix in families if code.startswith(prefix)), key=len)]
        assert not [key for key in family if table.get(key) == family[key]], code


@every(error_classes())
def test_a_class_with_a_code_takes_its_words_from_the_row(kind):
    """The same words in class and row would differ one day. A class that shares its code may know a better hint."""
    assert kind.code in catalogue()
    assert kind.hint.strip()
    assert not RIDDLES.search(kind.hint)
    shared = sum(vars(other).get("code") == kind.code for other in error_classes()) > 1
    assert not {"code", "hint"} <= vars(kind).keys() or shared


def sample(kind: type[VeenError]) -> VeenError:
    """An error with arguments of the types that it asks for."""
    values = {int: 7, str: "x", bytes: bytes(32)}
    parameters = [
        parameter
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.name != "self" and parameter.default is parameter.empty
    ]
    return kind(*(values[parameter.annotation] for parameter in parameters))


TEMPLATES = [kind for kind in error_classes() if "{" in catalogue()[kind.code].message and "hint" not in vars(kind)]


@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda kind: kind.__name__)
def test_a_message_is_filled_with_the_fields_of_the_error(kind):
    error = sample(kind)
    prefix = catalogue()[kind.code].message.partition("{")[0]
    assert str(error).startswith(prefix)
    assert str(error) != catalogue()[kind.code].message
    assert failure_of(error).cause == str(error)


def test_every_message_with_fields_is_tried():
    assert {row.code for row in ROWS if "{" in row.message} == {kind.code for kind in TEMPLATES}


def test_every_failure_of_a_command_has_a_code_of_the_catalogue():
    """Its exit status is that of the row, so a `Fail` names one only where its code comes from elsewhere."""
    calls = [
        (path.name, node.args[0], {keyword.arg for keyword in node.keywords})
        for path in sorted((SOURCE / "cli").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fail"
    ]
    literal = [(place, code.value, names) for place, code, names in calls if isinstance(code, ast.Constant)]
    assert len(literal) > 40
    assert [row for row in literal if row[1] not in catalogue()] == []
    assert {place for place, _, names in literal if "exit_code" in names} == {"files.py", "run.py"}


def test_the_catalogue_is_read_from_a_zip_too(tmp_path):
    """Spark ships the package as a zip, and executors put errors into words as well."""
    from veen.lake.spark.submit import pack_code

    packed = pack_code(tmp_path / "veen.zip")
    code = "import veen.core.catalogue as c; print(c.__file__, len(c.catalogue()))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(packed)!r}); {code}"],
        capture_output=True,
        check=True,
        text=True,
    )
    place, rows = done.stdout.split()
    assert place.startswith(str(packed))
    assert int(rows) == len(ROWS)
