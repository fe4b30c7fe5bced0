"""Edits of a file that a model saw folded: found where it saw them, made in the whole file."""

from __future__ import annotations

import pytest

from foundry.agents.chat.answers import AnswerError, ProposalAnswer
from foundry.agents.chat.proposal import place_edits
from foundry.agents.prompt_text.source import (
    SOURCE_CHARS,
    WHOLE_CHARS,
    code_words,
    fold,
    is_shown_whole,
    language_of,
    launches_of,
    mark,
    outline_of_file,
    show,
)
from foundry.knowledge.compiler.file.texts import library_texts, read_library_text
from foundry.knowledge.thought import Edit, apply_edits

HEADER = read_library_text("cpu/runtime.h").strip()
OWN = "#include <omp.h>\nint foundry_forward(void** b) { return 0; }\n"
CLASS = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + x\n"
PARENT = f'SOURCE = r"""{HEADER}\n{OWN}"""\n{CLASS}'
LONG = PARENT + "".join(f"# line {number}\n" for number in range(9000)) + "# the end\n"


def after(parent: str, *edits: tuple[str, str]) -> str:
    """The parent after these edits of a model's answer."""
    answer = ProposalAnswer.model_validate({"edits": [{"old": old, "new": new} for old, new in edits]})
    return apply_edits(parent, place_edits(answer.edits, parent))


def test_what_occurs_once_where_the_model_looked_may_occur_in_the_hidden_header() -> None:
    assert HEADER.count("#include <omp.h>") == 1
    changed = after(PARENT, ("#include <omp.h>", "#include <cmath>"))
    assert changed == PARENT.replace(OWN, OWN.replace("omp.h", "cmath"))


def test_a_file_that_is_too_long_is_edited_at_both_ends() -> None:
    assert len(show(LONG)) < WHOLE_CHARS + 100 and "# line 4500\n" not in show(LONG)
    changed = after(LONG, ("# the end", "# an end"), ("omp.h>\nint", "cmath>\nint"), ("# line 8999\n", ""))
    wanted = LONG.replace("# the end", "# an end").replace(OWN, OWN.replace("omp.h", "cmath"))
    assert changed == wanted.replace("# line 8999\n", "")
    with pytest.raises(AnswerError, match="occurs 0 times in the parent's code as it was shown"):
        after(LONG, ("# line 4500\n", ""))


def test_a_file_is_cut_between_lines_and_only_where_that_saves_something() -> None:
    shown = show(LONG).splitlines()
    assert set(shown) - set(LONG.splitlines()) == {
        line for line in shown if line.startswith("# ...") or "@foundry" in line
    }
    barely = "#\n" * (SOURCE_CHARS // 2 + 100)
    assert show(barely) == barely


def test_a_file_with_a_hole_in_its_middle_is_told_of_and_not_shown() -> None:
    """An author made nothing of its ends, which take the room of what tells more."""
    table = "_LAUNCHES_0 = [\n    ('a', (1, 1, 1)),\n    ('b', (2, 1, 1)),\n]\n"
    assert is_shown_whole(PARENT) and is_shown_whole(big_file()) and not is_shown_whole(LONG)
    told = outline_of_file(LONG + table)
    assert f"{len(LONG + table)} characters" in told and "with 2 launches a call" in told and len(told) < 400
    assert "launches" not in outline_of_file(LONG)


def test_what_is_quoted_with_a_fold_in_it_keeps_what_the_fold_hides() -> None:
    first, second = show(PARENT).splitlines()[:2]
    quoted = f"{first}\n{second}"
    assert after(PARENT, (quoted, quoted.replace("omp.h", "cmath"))) == PARENT.replace(
        OWN, OWN.replace("omp.h", "cmath")
    )
    assert after(PARENT, (first, 'SOURCE = r"""')) == PARENT.replace(HEADER, "")  # without the header, as it is asked
    assert fold(LONG).restore(show(LONG).replace("# the end", "# an end")) == LONG.replace("# the end", "# an end")


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ([("runtime.h@\n#include", "#include")], "cuts a line that stands for text which is not shown"),
        ([("return x + x", "return x"), ("x + x", "2 * x")], "two edits change the same text"),
        ([("x", "y")], "occurs [0-9]+ times"),
        ([("", "y")], "occurs 0 times"),
    ],
)
def test_edits_that_cannot_be_placed_are_said_to_the_model(edits: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises((AnswerError, ValueError), match=problem):
        after(PARENT, *edits)


def test_edits_without_a_place_must_be_the_only_ones() -> None:
    assert apply_edits("a b", [Edit("b", "c")]) == "a c"
    with pytest.raises(ValueError, match="edit 1: its old text occurs 2 times, not once"):
        apply_edits("a a", [Edit("a", "c")])
    with pytest.raises(ValueError, match="edit 1: its old text is not at character 1"):
        apply_edits("a a", [Edit("a", "c", 1)])


def test_the_librarys_templates_are_one_line_each() -> None:
    texts = {name: text for name, text in library_texts().items() if name.endswith((".h", ".cpp"))}
    file = 'SOURCE = r"""' + "\n\n".join(text.strip() for text in texts.values()) + '"""\n'
    assert len(show(file)) < 150 * len(texts) and all(mark(name) in show(file) for name in texts)
    assert fold(file).restore(show(file)) == file


LOADER = """

# ---- the task's model: parameters keep their names
class Model: ...
# ---- building and loading the library
def _load(): return "everything"

_PARAMETERS = []


def _forward_0(leaves): return leaves


"""


def big_file(target: str = "cpu") -> str:
    """A file of the library with more kernels than are shown: its own machinery, and two of this task's."""

    def function(head: str, lines: int) -> str:
        return f"{head} {{\n" + "".join(f"  x[{line}] += {head[-6:]};\n" for line in range(lines)) + "}\n"

    parts = [function(f"static void machinery_{number:02}()", 200) for number in range(6)]
    parts += [function("static void k_first(const float* x,\n                    float* y)", 120)]
    parts += [function("void k_second()", 90), function('extern "C" int foundry_forward(void** buffers)', 210)]
    top = f"# Foundry kernel, target {target}. Needs torch and g++ only.\n\nimport ctypes\n\nFOUNDRY = {{}}\n\n"
    return f'{top}SOURCE = r"""{HEADER}\n{"".join(parts)}"""\n{LOADER}{CLASS}'


def test_a_library_file_is_shown_as_its_kernels_alone() -> None:
    """The machinery around every kernel took the room of the kernel itself, whose body was folded to one line."""
    file = big_file()
    shown, whole = show(file), fold(file)
    assert len(file) > 3 * len(shown) and len(shown) < SOURCE_CHARS and language_of(file) == "cpp"
    hidden = ("everything", "class Model", "_forward_0", "import ctypes", "SOURCE")
    assert not [word for word in hidden if word in shown]
    assert shown.startswith(mark("cpu/runtime.h")) and shown.count("@foundry body") >= 3
    assert "x[88] += cond" in shown and "x[0]" not in shown.partition("foundry_forward")[2], "kernels are folded last"
    assert whole.restore(whole.text) == file
    old, new = "static void machinery_00() {", "static inline void machinery_00() {"
    wanted = file.replace(old, new).replace("x[88] += cond", "x[88] -= cond")
    assert after(file, (old, new), ("x[88] += cond", "x[88] -= cond")) == wanted != file


def test_what_the_tool_showed_may_be_replaced_too() -> None:
    """Bodies that a prompt folds are shown by the tool; a replacement there occurred 0 times."""
    file = big_file()
    line = "  x[150] += y_05()"
    assert line not in show(file) and line in show(file, WHOLE_CHARS)
    assert after(file, (line, "  x[151] += y_05()")) == file.replace(line, "  x[151] += y_05()")


def test_the_launches_of_a_cuda_file_are_told_in_one_line() -> None:
    rows = "    ('foundry_k_sum', (128, 1, 1), (32, 4, 1), 2048, (0, 1)),\n    ('b', (2, 3, 1), (1, 1, 1), 0, ()),\n"
    file = big_file("cuda").replace("_PARAMETERS", f"_LAUNCHES_0 = [\n{rows}]\n\n_PARAMETERS")
    assert launches_of(file) == "Launches: foundry_k_sum grid 128 block 32x4 shared_bytes 2048; b grid 2x3 block 1."
    assert code_words(file).startswith(f"{launches_of(file)}\n```cuda\n// @foundry") and launches_of(big_file()) == ""
