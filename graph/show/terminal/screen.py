"""Draws a run: what it has spent, islands side by side, the best so far as a curve, the users' last words and what came
of them. 80 columns and 24 rows are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from rich.style import Style
from rich.text import Text

from foundry.graph.show.terminal.scene import IslandScene, Scene, Standing
from foundry.tools.words import make_printable

CURVE_ROWS = 4
NARROWEST = 19  # columns of an island; more islands take a second row, many a line each
BARS = " ▁▂▃▄▅▆▇█"
SHORT_ROLES = {"parameters": "params", "algorithm": "algo", "any": ""}  # the last prefers nothing
DIM, BOLD, GOOD = Style(dim=True), Style(bold=True), Style(color="green")


@dataclass
class Below:
    """The text below the picture: the reply to the last line (from its line `first` on), and the line being typed."""

    reply: list[str] = field(default_factory=list)
    first: int = 0
    typed: str | None = None  # None: the terminal takes no input
    cursor: int = 0
    offers: Sequence[str] = ()


def draw(scene: Scene, standing: Standing, below: Below, now: float, width: int, height: int) -> list[Text]:
    """The picture as exactly `height` lines of at most `width` columns: head and islands, then reply or curve, below it
    the prompt."""
    prompt = _prompt(below, width)
    words = _directives(scene, standing, width)
    top = [*_head(scene, standing, now, width), *_islands(scene, width, height)]
    room = height - len(top) - len(prompt)
    if below.reply:
        middle = _reply(below, room, width)
    else:
        middle = [*_curve(scene, width), *words]
        middle += _latest(scene, room - len(middle))
    lines = [*top, *middle]
    lines = lines[: height - len(prompt)]
    lines += [Text()] * (height - len(prompt) - len(lines))
    for line in (*lines, *prompt):
        line.truncate(width, overflow="ellipsis")
    return [*lines, *prompt]


def _head(scene: Scene, standing: Standing, now: float, width: int) -> list[Text]:
    """The three lines on top: task, phase and brain; the budget; the reference's time and the best candidate."""
    request = scene.request
    brain = request.models.title
    state = scene.phase if standing.is_active else standing.kept_state
    first = Text.assemble((f"{make_printable(request.task.rsplit('/', 1)[-1])}  ", BOLD), (state, "cyan"), f"  {brain}")
    best = Text(f"eager {scene.eager_ms:.3f} ms" if scene.eager_ms else "the reference is not timed yet")
    if scene.best:
        name, speedup, (low, high) = scene.best
        ms = f", {scene.eager_ms / speedup:.3f} ms" if scene.eager_ms else ""
        best.append(f"  best {name}: {speedup:.2f}x [{low:.2f}, {high:.2f}]{ms}", GOOD)
    return [first, Text(_budget(scene, standing, now)), best]


def _budget(scene: Scene, standing: Standing, now: float) -> str:
    """Evaluations, minutes, tokens and dollars: spent, allowed, and the rate."""
    allowed = standing.allowed
    rate = scene.rate_per_min(now if standing.is_active else scene.last_at)
    parts = [
        f"{standing.spent}/{allowed.evaluations} evaluations, {rate:.1f} a minute",
        f"{standing.elapsed_s / 60:.1f}/{allowed.minutes:.3g} min",
    ]
    if scene.request.models:
        parts.append(f"{_short(scene.tokens)}{f'/{_short(allowed.tokens)}' if allowed.tokens else ''} tokens")
        parts.append(f"${scene.dollars:.2f}{f'/{allowed.dollars:g}' if allowed.dollars else ''}")
    return "  ".join(parts)


def _short(count: float) -> str:
    """A count as text: millions from 1e6 on, thousands from 1e4 on."""
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k" if count >= 1e4 else f"{count:.0f}"


# islands


def _islands(scene: Scene, width: int, height: int) -> list[Text]:
    """The islands side by side as blocks, or a line each if there is little room."""
    islands = [scene.islands[number] for number in sorted(scene.islands)]
    if not islands:
        return [Text("no island has started yet", DIM)]
    columns = max(1, min(len(islands), (width + 1) // (NARROWEST + 1)))
    rows = -(-len(islands) // columns)
    if rows > 2 or 5 * rows > height - 12:
        most = max(1, height - 14)
        lines = [_island_line(scene, island, width) for island in islands[:most]]
        return lines if len(islands) <= most else [*lines, Text(f"and {len(islands) - most} islands more", DIM)]
    wide = (width + 1) // columns - 1
    found = [Text("─" * width, DIM)]
    for start in range(0, len(islands), columns):
        blocks = [_island_block(scene, island, wide) for island in islands[start : start + columns]]
        for line in range(len(blocks[0])):
            joined = Text()
            for number, block in enumerate(blocks):
                joined.append("│" if number else "", DIM)
                cell = block[line].copy()
                cell.truncate(wide, overflow="ellipsis", pad=True)
                joined.append_text(cell)
            found.append(joined)
    return [*found, Text("─" * width, DIM)]


def _island_block(scene: Scene, island: IslandScene, width: int) -> list[Text]:
    """Four lines: who it is, its step, and the latest reason."""
    gain = f" {island.best:.2f}x" if island.best else ""
    star = "*" if scene.best_island == island.number else ""
    role = scene.role(island.number)
    name = (f"{island.number} {SHORT_ROLES.get(role, role)}".rstrip(), BOLD)
    head = Text.assemble(name, f" g{island.step.generation}", (gain + star, GOOD))
    if island.ended:
        return [head, *(Text(line, DIM) for line in _wrap(island.ended, width, 3))]
    return [head, Text(_doing(island), "yellow"), *(Text(line, DIM) for line in _wrap(island.reason, width, 2))]


def _island_line(scene: Scene, island: IslandScene, width: int) -> Text:
    """One island as a line: number, role, generation, best speedup, what it does and why."""
    gain = f"{island.best:.2f}x" if island.best else "-"
    role = scene.role(island.number).replace("any", "")
    head = f"{island.number:>2} {role:<10} g{island.step.generation:<4} {gain:>7}  "
    line = Text.assemble((head, BOLD), (_doing(island), "yellow"), (f"  {make_printable(island.reason)}", DIM))
    line.truncate(width, overflow="ellipsis")
    return line


def _doing(island: IslandScene) -> str:
    """An island's expert and its action, or the reason why the island has ended."""
    step = island.step
    expert = f"@{step.expert} " if step.expert else ""
    return make_printable(island.ended) if island.ended else f"{expert}{step.doing} {step.candidate}".rstrip()


def _wrap(text: str, width: int, rows: int) -> list[str]:
    """The words of a text on so many lines; a last line that is too long is cut."""
    lines = [""]
    for word in make_printable(text).split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width and len(lines) < rows:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines + [""] * (rows - len(lines))


# curve


def _curve(scene: Scene, width: int) -> list[Text]:
    """The curve of the best cautious speedup (one deviation below) over the evaluations."""
    title = Text("best so far, one deviation below", DIM)
    points = [value for value in scene.curve if value > 0]
    if not points:
        return [title, *(Text() for _ in range(CURVE_ROWS))]
    high, low = max(points), min(points)
    label = max(len(f"{high:.2f}x"), len(f"{low:.2f}x")) + 1
    columns = min(width - label, len(scene.curve))
    values = [scene.curve[(number + 1) * len(scene.curve) // columns - 1] for number in range(columns)]
    span = (high - low) or high
    base = low if high > low else 0.0  # a level line stands high
    eighths = [0 if value <= 0 else 1 + round((value - base) / span * (8 * CURVE_ROWS - 1)) for value in values]
    rows = []
    for row in range(CURVE_ROWS):
        below = 8 * (CURVE_ROWS - 1 - row)
        text = "".join(BARS[max(0, min(8, value - below))] for value in eighths)
        mark = f"{high:.2f}x" if row == 0 else f"{low:.2f}x" if row == CURVE_ROWS - 1 and high > low else ""
        rows.append(Text.assemble((mark.rjust(label - 1) + " ", DIM), (text, GOOD)))
    return [title, *rows]


# words


def _directives(scene: Scene, standing: Standing, width: int) -> list[Text]:
    """The last directives, each with what came of it; a question of the run comes first."""
    lines = [Text(f"the run asks: {make_printable(standing.question)}", "yellow")] if standing.question else []
    for said in standing.directives[-3:]:
        effect = scene.history.effect(said, standing.taken)
        words = make_printable(said.text)[: width // 3]
        lines.append(Text.assemble((f"d{said.id} ", BOLD), words, (f"  {make_printable(effect)}", "magenta")))
    return lines


def _latest(scene: Scene, rows: int) -> list[Text]:
    """The last steps that were evaluated, the newest first, as many as there is room for."""
    done = [step for step in scene.history.steps if step.candidate in scene.history.outcomes]
    found = []
    for step in reversed(done[-rows:] if rows > 0 else []):
        line = f"{step.expert}: {step.parent} -> {scene.history.result(step)}  {make_printable(step.change)}"
        found.append(Text(line, DIM))
    return found


def _reply(below: Below, room: int, width: int) -> list[Text]:
    """As much of the reply as fits, from its line `first` on, long lines broken."""
    broken = [part for line in below.reply for part in _break(line, width)]
    below.first = max(0, min(below.first, len(broken) - (room - 1)))
    shown = broken[below.first : below.first + max(1, room - 1)]
    rest = len(broken) - below.first - len(shown)
    hint = f"{rest} lines more: PageDown" if rest > 0 else "Esc: back to the picture"
    return [*(Text(line) for line in shown), Text(hint, DIM)]


def _break(line: str, width: int) -> list[str]:
    """The line in pieces of at most `width` characters, at least one; what cannot be printed becomes spaces."""
    text = "".join(char if char.isprintable() else " " for char in line.expandtabs(4))
    return wrap(text, width, drop_whitespace=False) or [""]


def _prompt(below: Below, width: int) -> list[Text]:
    """The lines to type on: completions or a hint, and the text with its cursor; none without typing."""
    if below.typed is None:
        return []
    room = width - 3
    start = max(0, below.cursor - room)
    shown = below.typed[start : start + room]
    at = below.cursor - start
    line = Text("> ", BOLD)
    line.append(shown[:at])
    line.append(shown[at : at + 1] or " ", Style(reverse=True))
    line.append(shown[at + 1 :])
    hint = "  ".join(below.offers) if below.offers else "" if below.typed else "say something to the experts, or: help"
    return [Text(hint, DIM), line]
