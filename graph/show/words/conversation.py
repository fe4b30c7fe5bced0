"""`foundry agent chat`: answers a line from the trace, or posts it to the experts' inbox."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from foundry.agents.directives import NotUnderstood, RunQuestion, addressee, parse, promise
from foundry.agents.explanation import answer_misunderstood, explain, stands_for, tunables
from foundry.graph.run.opening import Parts
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.thinking import ask_model
from foundry.graph.search.known import read_known_kernels
from foundry.graph.show.view import refusals
from foundry.graph.show.words.answers import answer, context
from foundry.graph.show.words.checks import check
from foundry.graph.show.words.completion import Names
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.errors import UsageError
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Directive
from foundry.tools.words import to_paste

POLL_S = 0.25
PAID = ("tokens", "dollars", "calls")  # units of a budget that models spend


@dataclass(frozen=True)
class Reply:
    """The reply to a user's line.

    `directive` is the id of the posted directive, 0 if there is none. A line that is not `understood` is refused and
    leaves nothing behind.
    """

    text: str
    directive: int = 0
    understood: bool = True


def say(run: RunDirectory, line: str, parts: Parts | None = None) -> Reply:
    """Takes one line of a user in a conversation of its own."""
    return Conversation(run, parts or Parts()).say(line)


class Conversation:
    """A user's lines to one run.

    Directives are compared with the run's kernels. These are read once, and again before a line is refused that a newer
    kernel could follow.
    """

    def __init__(self, run: RunDirectory, parts: Parts) -> None:
        """Reads no kernels yet."""
        self.run = run
        self._parts = parts
        self._kernels: tuple[list[Lowered], OpGraph | None] | None = None
        self._made = -1  # count of candidates when the kernels were read

    def say(self, line: str) -> Reply:
        """Answers a question or posts a directive; a directive that no kernel of the run can follow is refused.

        With a chat model, free text goes to the experts, which write kernels of their own, and free questions go to the
        model.
        """
        run, said = self.run, parse(line)
        if isinstance(said, RunQuestion):
            return self._answer(said)
        if isinstance(said, Directive) and said.to == "run":
            checked = check(run, said, self._parts)
            if checked.refusal:
                return Reply(checked.refusal, understood=False)
            return _post(run, checked.order, promise(checked.order))
        if isinstance(said, NotUnderstood):
            return self._take_free_text(said, line)
        candidates, why = self._explain(said)
        if not why:
            return _post(run, said, " ".join(filter(None, (promise(said), stands_for(said, candidates)))))
        if not run.request.models:
            return Reply(why, understood=False)
        return _post(run, said, f"{why} {_reader(said)} will read it as it stands, and may write such a kernel.")

    def names(self) -> Names:
        """The run's names with which a line can be completed."""
        candidates, _ = self._known()
        kernels = [summary.name for item in candidates for summary in item.kernels]
        values = [name for item in candidates for name in (*item.fused, *item.materialised)]
        rewrites = [name for item in candidates for name in (*item.rewrites_open, *item.rewrites_applied)]
        made = [item.candidate.id for item in self.run.decisions(by_time=True)]
        said = [f"d{item.id}" for item in self.run.inbox.read()]
        return Names(
            tunables=tuple(tunables(candidates)),
            kernels=_once(kernels),
            values=_once(values),
            rewrites=_once(rewrites),
            candidates=tuple(made),
            directives=tuple(said),
        )

    def _answer(self, asked: RunQuestion) -> Reply:
        """The answer to a question; not understood if it names something that the run does not have."""
        try:
            return Reply(answer(self.run, asked))
        except UsageError as error:
            return Reply(str(error), understood=False)

    def _take_free_text(self, said: NotUnderstood, line: str) -> Reply:
        """The reply to a line that is no directive: an answer, a post to the models, or how to say it."""
        run = self.run
        if not run.request.models:
            return Reply(answer_misunderstood(said, self._known()[0]), understood=False)
        if line.rstrip().endswith("?"):
            return _ask_model(run, line, self._parts)
        return _post(run, said.directive, f"{_reader(said.directive)} will read it as it stands.")

    def _explain(self, said: Directive) -> tuple[list[Lowered], str]:
        """The run's kernels, and why none can follow the directive ("" if one can); reads newer kernels first if
        needed."""
        candidates, graph = self._kernels or self._known()
        why = explain(said, candidates, graph)
        if why or not candidates:
            candidates, graph = self._known()
            why = explain(said, candidates, graph)
        return candidates, why

    def _known(self) -> tuple[list[Lowered], OpGraph | None]:
        """The run's kernels and graph, read again if there are new candidates."""
        made = self.run.decision_count()
        if self._kernels is None or made != self._made:
            self._kernels, self._made = read_known_kernels(self.run, self._parts.library()), made
        return self._kernels


def costs(run: RunDirectory, line: str) -> bool:
    """True if a line makes a model answer, adds a model or lets one spend more."""
    said = parse(line)
    if isinstance(said, NotUnderstood):
        return bool(run.request.models) and line.rstrip().endswith("?")
    if isinstance(said, RunQuestion):
        return False
    return said.verb == "model" or (said.verb == "budget" and said.command["unit"] in PAID)


def wait_for_acknowledgement(run: RunDirectory, directive: int, limit_s: float) -> str:
    """Waits at most `limit_s` seconds for a directive's readers; the text names them or says that it still waits."""
    deadline = time.monotonic() + limit_s
    while True:
        taken = [item for item in run.inbox.acknowledgements() if item.directive == directive]
        if taken:
            readers = ", ".join(f"{item.reader} at {item.step}" for item in taken)
            return "\n".join([f"d{directive} taken by {readers}", *refusals(taken)])
        if time.monotonic() >= deadline or not run.is_active:
            return f"d{directive} waits: nobody has begun a new step yet"
        time.sleep(POLL_S)


def _post(run: RunDirectory, said: Directive, outlook: str) -> Reply:
    """Puts a directive into the inbox. The reply says its number, what will be done (`outlook`) and when it is
    taken."""
    number = run.inbox.post(said)
    if run.is_active:
        return Reply(f"d{number}: {outlook} It is taken when the next step begins.", number)
    if run.get("status") == "finished":
        fork = to_paste("foundry", "agent", "fork", run.path)
        hint = f'{fork} --say "..." goes on with it; `instructions = "..."` in '
        hint += f"{Path(run.request.task).stem}.toml tells every run of the task"
        return Reply(f"d{number} is recorded, but the run is finished and no expert reads on: {hint}.")
    again = to_paste("foundry", "agent", "resume", run.path)
    return Reply(f"d{number}: {outlook} It is taken when the run goes on: {again}", number)


def _ask_model(run: RunDirectory, line: str, parts: Parts) -> Reply:
    """Asks the run's model the line, with the run's facts. The reply is its answer, or says why there is none."""
    told, problem = ask_model(run, line, context(run, line), parts)
    return Reply(told or f"The model gave no answer: {problem or 'it was empty'}.", understood=bool(told))


def _once(names: list[str]) -> tuple[str, ...]:
    """The names, each once, in order."""
    return tuple(dict.fromkeys(names))


def _reader(directive: Directive) -> str:
    """The reader of a directive, as the beginning of a sentence."""
    name = addressee(directive)
    return name[0].upper() + name[1:]
