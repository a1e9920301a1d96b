"""The count of names that say too little: what counts, and what is said when a number rises."""

import ast

import pytest

import words
from words import Offence, doubles, find_banned, moods, parse_diff, participles, questions, report


def names(source):
    return [offence.name for offence in find_banned("a.py", ast.parse(source))]


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "found: int = 1",
        "found += 1",
        "a, (found, *b) = c",
        "for found in a: pass",
        "[found for found in a]",
        "with a as found: pass",
        "if (found := a): pass",
        "def f():\n    async def g():\n        async for found in a: pass",
    ],
)
def test_every_way_to_name_a_variable_counts(source):
    assert names(source) == ["found"]


@pytest.mark.parametrize(
    "source", ["self.found = 1", "print(found)", "def found(given): pass", "f(one=1)", "founded = 1"]
)
def test_what_names_no_variable_does_not_count(source):
    assert names(source) == []


def test_a_public_class_counts_from_its_second_definition_on():
    trees = {
        "b.py": ast.parse("class Entry: pass\nclass _Hidden: pass"),
        "a.py": ast.parse("class Entry: pass\nclass _Hidden: pass\nclass Sole:\n    class Entry: pass"),
        "c.py": ast.parse("if a:\n    pass\nclass Entry: pass"),
    }
    assert list(doubles(trees)) == [Offence("b.py", 1, "Entry"), Offence("c.py", 3, "Entry")]


def test_a_docstring_that_begins_with_a_question_word_counts():
    source = (
        '"""Who reads."""\nclass A:\n    """What it is."""\n    def f(self):\n        """Whether: one of them."""\n'
    )
    assert [offence.line for offence in questions("a.py", ast.parse(source))] == [1, 3, 5]
    assert list(questions("a.py", ast.parse('"""Whatever."""\ndef f():\n    """Return what is there."""\n'))) == []


@pytest.mark.parametrize("name", ["_claimed", "written_at", "taken", "sent", "reading_options"])
def test_a_function_named_by_a_participle_counts(name):
    assert [offence.name for offence in participles("a.py", ast.parse(f"def {name}(): pass"))] == [name]
    assert list(participles("a.py", ast.parse(f"class A:\n    @property\n    def {name}(self): pass"))) == []


@pytest.mark.parametrize(
    "name", ["read", "feed", "need_room", "open_log", "on_written", "test_taken", "signing_digest"]
)
def test_a_function_named_by_a_verb_does_not_count(name):
    assert list(participles("a.py", ast.parse(f"async def {name}(): pass"))) == []


def test_a_docstring_of_a_function_begins_with_an_imperative(tmp_path):
    (tmp_path / "src").mkdir()
    source = (
        'def f():\n    """Returns: the number."""\ndef g():\n    """Return it."""\nclass A:\n    """The thing."""\n'
    )
    (tmp_path / "src" / "a.py").write_text(source)
    assert list(moods(tmp_path, "src")) == [Offence("src/a.py", 2, '"Returns: the number."')]


def test_a_number_that_rises_is_told_with_the_lines_that_are_new():
    broken = {"locals_src": [Offence("a.py", 3, "one"), Offence("a.py", 9, "one"), Offence("b.py", 3, "one")]}
    assert report(broken, {"locals_src": 3}, {}) == []
    first, *lines = report(broken, {"locals_src": 2}, {"a.py": {8, 9}})
    assert "3, but tools/words.toml allows 2" in first
    assert lines == ["  a.py:9: one"]
    assert len(report(broken, {"locals_src": 2}, None)) == 4  # without git: all of them
    assert len(report(broken, {}, {"a.py": {9}})) == 2  # a rule without a number allows nothing


def test_added_lines_are_read_from_a_diff():
    diff = """\
diff --git a/src/x.py b/src/x.py
--- a/src/x.py
+++ b/src/x.py
@@ -10,2 +10 @@ def f():
-old
-old
+new
@@ -20,0 +20,3 @@
+a
+b
+c
@@ -30,2 +32,0 @@
-gone
-gone
"""
    assert parse_diff(diff) == {"src/x.py": {10, 20, 21, 22}}


def test_numbers_are_only_ever_lowered(tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "tools").mkdir()
    source, limits = tmp_path / "src" / "a.py", tmp_path / "tools" / "words.toml"
    source.write_text("found = 1\none = 2\n")
    limits.write_text("locals_src = 3\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert words.main(["--lower"]) == 0
    assert "locals_src = 2\n" in limits.read_text()
    source.write_text("found = one = made = 1\n")
    assert words.main([]) == 1
    words.main(["--lower"])
    assert "locals_src = 2\n" in limits.read_text()
    source.write_text("")
    assert words.main([]) == 0
