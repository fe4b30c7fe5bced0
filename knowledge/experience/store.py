"""The experience store: recalls what worked on similar graphs, and records what this run tries."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import UsageError
from foundry.knowledge.experience.credit import MeasuredStep, fit, nearest, step_of
from foundry.knowledge.experience.index import ChromaIndex, Index, ScanIndex
from foundry.knowledge.experience.journal import LessonJournal
from foundry.knowledge.experience.record import Credit, ExperienceRecord, Hit, Known, Query
from foundry.knowledge.experience.variants import VariantArchive
from foundry.knowledge.home import foundry_home

SIMILAR = 0.5  # largest weight of a record of another graph, relative to one of the same graph
READ_BEYOND = 64  # records, at most, of a shared index alone that are read for credits
READ_STEPS = 4000  # newest records of other graphs that are read for credits
MOST_CREDITS = 96  # credits returned
READ_KNOWN = 4000  # newest steps that are searched for measurements
RUNS_OF_A_GRAPH = 5  # newest runs of a graph that are read
OF_A_GRAPH = 30  # most configurations read of one graph
MOST_KNOWN = 300  # most configurations read of all graphs


class ExperienceStore:
    """A journal and its index. Thread-safe in one process.

    Several processes may open the same folder: the first owns the Chroma index, the others search the journal
    itself.
    """

    def __init__(self, journal: LessonJournal, index: Index) -> None:
        """Indexes the journal's new records."""
        self._journal = journal
        self._prompts: VariantArchive | None = None
        self._index = index
        self._index.sync(journal)

    @classmethod
    def open(cls, location: str | Path | None = None) -> ExperienceStore:
        """The store in a folder (default $FOUNDRY_HOME/experience), or shared through a Chroma server by URL. Raises
        UsageError.

        With a server the journal holds this machine's lessons, and the server those of all machines.
        """
        folder = folder_of(location)
        journal = LessonJournal(folder / "journal.sqlite")
        if _is_server(location):
            return cls(journal, ChromaIndex.server(str(location), folder))
        try:
            index = ChromaIndex.open_embedded(folder / "index")
        except OSError as error:
            raise UsageError(f"the experience store {folder} cannot be written: {error.strerror}") from error
        return cls(journal, index or ScanIndex())

    @property
    def prompts(self) -> VariantArchive:
        """The archive of rewritten expert prompts, opened at the first use. Raises UsageError."""
        if self._prompts is None:
            self._prompts = VariantArchive(self._journal.path.parent)
        return self._prompts

    @property
    def index_kind(self) -> str:
        """ "chroma", "chroma server", or "scan" if another process owns the index."""
        return self._index.kind

    @property
    def note(self) -> str:
        """A remark for the user about the opening, in one line; "" for nothing."""
        return self._journal.note

    def add(self, records: Iterable[ExperienceRecord]) -> int:
        """Journals new records (same id twice counts once), each with its move's present credit; returns their number.

        They are indexed at the next recall, in one batch.
        """
        given = list(records)
        known = self._journal.known_ids([record.id for record in given])
        return self._journal.append(self._credited([record for record in given if record.id not in known]))

    def _credited(self, records: Sequence[ExperienceRecord]) -> list[ExperienceRecord]:
        """The records with their moves' credits; those without one are fitted, step by step, with the store's measured
        steps."""
        found = []
        waiting = dict[tuple[str, str], list[ExperienceRecord]]()
        for record in records:
            if record.log_lift is None or record.credit is not None:
                found.append(record)
            else:
                waiting.setdefault((record.run, record.step), []).append(record)
        for lessons in waiting.values():
            one = lessons[0]
            asked = _query_of(one)
            fresh = step_of(one, {record.move: record.id for record in lessons})
            steps = nearest([fresh, *self._steps(asked)], asked)
            credits = {credit.move: credit for credit in fit(steps, asked, [record.move for record in lessons])}
            found += [replace(record, credit=credits[record.move]) for record in lessons]
        return found

    def booked(self, ids: Sequence[str]) -> list[Credit]:
        """Credits of these lessons' moves at the time of recording, best first."""
        credits = [record.credit for record in self._journal.by_ids(ids) if record.credit is not None]
        return sorted(credits, key=lambda credit: (-credit.log_effect, credit.move))

    def recall(self, query: Query, k: int = 8) -> list[Hit]:
        """The k nearest records of other runs, one a step: winners of a run, then the same graph, then similar
        operators.

        Among equals, those with the largest gain or loss.
        """
        self._index.sync(self._journal)
        exact = self._journal.exact(query.graph_signature, query.target)
        hits = [
            Hit(record, *_exact_nearness(query, record.shape_class, record.device, record.limiter))
            for _, record in exact
        ]
        found: dict[tuple[str, str, bool], Hit] = {}
        for hit in sorted([*hits, *self._beyond(query, 4 * k)], key=_rank):
            record = hit.record
            if not query.run or record.run != query.run:
                found.setdefault((record.run, record.step, record.is_run_best), hit)
        return list(found.values())[:k]

    def credits(self, query: Query) -> list[Credit]:
        """The credit of each move on the query's graph, by this graph's steps and those of similar graphs, best
        first."""
        self._index.sync(self._journal)
        found = fit(nearest([*self._steps(query), *self._steps_abroad(query)], query), query)
        kept = sorted(found, key=lambda credit: (-credit.here, -credit.steps, credit.move))[:MOST_CREDITS]
        return [credit for credit in found if credit in kept]

    def overview(self, target: TargetName, task: str = "") -> list[Credit]:
        """The credit of each move on a task's graph as last seen. Raises UsageError for an unknown task.

        Without a task: on an unknown graph with any operators, on the machine of the newest lesson.
        """
        records = [one for one in self._journal.measured(target, READ_STEPS) if task in ("", one.task)]
        if not records:
            if task:
                raise UsageError(f"no lesson of a task {task!r} on {target}", "see `foundry knowledge list`")
            return []
        last = records[0]
        if task:
            return self.credits(_query_of(last))
        kinds = {kind for record in records for kind in record.op_kinds}
        return self.credits(Query("", tuple(sorted(kinds)), "", last.device, target))

    def _steps(self, query: Query) -> list[MeasuredStep]:
        """Measured steps on the query's target: all of the same graph, of others those of the newest READ_STEPS
        records."""
        return self._journal.steps(query.graph_signature, query.target, READ_STEPS)

    def _steps_abroad(self, query: Query) -> list[MeasuredStep]:
        """The nearest steps that other machines recorded on a shared server."""
        records = [hit.record for hit in self._beyond(query, READ_BEYOND) if hit.record.log_lift is not None]
        own = self._journal.known_ids([record.id for record in records])
        steps: dict[tuple[str, str], list[ExperienceRecord]] = {}
        for record in records:
            if record.id not in own:
                steps.setdefault((record.run, record.step), []).append(record)
        return [step_of(made[0], {record.move: record.id for record in made}) for made in steps.values()]

    def known(self, query: Query, templates: Collection[str]) -> list[Known]:
        """Measured configurations of kernels of these templates: a limited number of each graph's newest runs,
        nearest graphs first."""
        graphs: dict[tuple[str, str], dict[str, dict[str, Known]]] = {}
        likeness: dict[tuple[str, str], float] = {}
        for record in self._journal.configurations(query.target, READ_KNOWN):
            if any(kernel.template in templates for kernel in record.kernels):
                known = _as_known(record, query)
                where = known.graph, known.site
                likeness.setdefault(where, _likeness(record, query))
                graphs.setdefault(where, {}).setdefault(record.run, {}).setdefault(record.source_digest, known)
        ranked = sorted(graphs, key=lambda where: -likeness[where])
        return [item for where in ranked for item in _of_graph(list(graphs[where].values()))][:MOST_KNOWN]

    def _beyond(self, query: Query, k: int) -> list[Hit]:
        """Hits that only the index finds: other graphs with shared operators, and this graph's lessons from other
        machines."""
        text = " ".join([*query.op_kinds, query.shape_class, query.limiter, query.text])
        near = [item for item in self._index.near(text, query.target, k) if item[1] > 0.0]
        own = self._journal.known_ids(
            [record.id for record, _ in near if record.graph_signature == query.graph_signature]
        )
        hits = []
        for record, cosine in near:
            if record.graph_signature == query.graph_signature and record.id not in own:
                nearness, why = _exact_nearness(query, record.shape_class, record.device, record.limiter)
                hits.append(Hit(record, nearness, why))
            elif record.graph_signature != query.graph_signature and set(record.op_kinds) & set(query.op_kinds):
                same_device = 1.0 if record.device == query.device else 0.7
                hits.append(Hit(record, SIMILAR * cosine * same_device, "similar operators"))
        return hits

    def newest(self, limit: int = 50) -> list[ExperienceRecord]:
        """The last `limit` records, newest first."""
        return [record for _, record in self._journal.newest(limit)]

    def search(self, text: str, target: str = "cpu", k: int = 10) -> list[tuple[ExperienceRecord, float]]:
        """Up to k records nearest to the text, with their similarity."""
        self._index.sync(self._journal)
        return self._index.near(text, target, k)

    def show(self, record_id: str) -> ExperienceRecord:
        """The record whose id starts with `record_id`; raises UsageError if there is none or several."""
        found = self._journal.by_prefix(record_id.removeprefix("x"))
        if len(found) != 1:
            many = "no record" if not found else f"{len(found)} records"
            raise UsageError(f"{many} with an id starting {record_id!r}", "see `foundry knowledge list`")
        return found[0][1]

    def export(self, path: Path) -> int:
        """Writes every live record as a JSON line; returns their number."""
        records = [record for _, record in self._journal.after(0)]
        path.write_text("".join(encode(record) + "\n" for record in records))
        return len(records)

    def import_(self, path: Path) -> int:
        """Adds the records of an exported file, all or none; returns the number of new ones.

        Raises UsageError naming the first bad line.
        """
        records: list[ExperienceRecord] = []
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}: {error}") from error
        for number, line in enumerate(lines, 1):
            try:
                records.append(decode(ExperienceRecord, line))
            except UsageError as error:
                raise UsageError(f"{path}:{number}: {error.problem}", "nothing was imported") from error
        return self._journal.append(records)

    def forget(self, ids: Sequence[str], reason: str = "user") -> int:
        """Forgets records by id; returns how many were live."""
        live = [record.id for record_id in ids for record in [self.show(record_id)]]
        return self._journal.forget(live, reason)

    def reindex(self) -> int:
        """Rebuilds the index from the journal; returns the number of records."""
        return self._index.rebuild(self._journal)

    def close(self) -> None:
        """Closes index, journal and, if open, the archive of prompts."""
        self._index.close()
        self._journal.close()
        if self._prompts is not None:
            self._prompts.close()


def folder_of(location: str | Path | None) -> Path:
    """The folder of a store on this machine, also of one that is shared through a server. Raises UsageError."""
    if _is_server(location):
        return foundry_home() / f"experience-{hashlib.sha256(str(location).encode()).hexdigest()[:12]}"
    folder = Path(location) if location else foundry_home() / "experience"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the experience store {folder} is a file, not a folder", "name a folder with --store")
    return folder


def _is_server(location: str | Path | None) -> bool:
    """True for an address that begins with http:// or https://."""
    return str(location or "").startswith(("http://", "https://"))


def shape_class(shapes: Sequence[tuple[int, ...]]) -> str:
    """Buckets the largest tensor by rank and powers of four, so that near sizes share lessons."""
    largest = max(shapes, key=math.prod, default=())
    size = max(math.prod(largest), 1)
    last = max(largest[-1], 1) if largest else 1
    return f"{len(largest)}d:n=4^{round(math.log(size, 4))}:row=4^{round(math.log(last, 4))}"


def record_id(*parts: object) -> str:
    """A stable id from run, island and step, so that a step run twice is recorded once."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:16]


def _query_of(record: ExperienceRecord) -> Query:
    """A query that recalls a record's own graph."""
    where = (record.graph_signature, record.op_kinds, record.shape_class, record.device)
    return Query(*where, record.target, record.limiter)


def _exact_nearness(query: Query, shapes: str, device: str, limiter: str) -> tuple[float, str]:
    """(nearness of a record of the query's own graph, reason in words)."""
    nearness = 1.0
    why = "same graph and size"
    if shapes != query.shape_class:
        nearness = 0.8
        why = "same graph, other size"
    if device != query.device:
        nearness, why = nearness * 0.6, why + ", other device"
    if query.limiter and limiter != query.limiter:
        nearness *= 0.9
    return nearness, why


def _of_graph(runs: Sequence[dict[str, Known]]) -> list[Known]:
    """The most informative configurations of a graph's newest runs; several runs make up for the noise of one."""
    newest = runs[:RUNS_OF_A_GRAPH]
    return [item for run in newest for item in _best_and_spread(list(run.values()), OF_A_GRAPH // len(newest))]


def _best_and_spread(found: Sequence[Known], most: int) -> list[Known]:
    """The best configurations of one run, and others from all the way down.

    Lost speed is as informative as found speed, and more of either cost time to evaluate and say little.
    """
    ranked = sorted(found, key=lambda item: (item.failed, -item.log_speedup))
    if len(ranked) <= most:
        return ranked
    best, rest = ranked[: most // 2], ranked[most // 2 :]
    count = most - len(best)
    return [*best, *(rest[round((number + 1) * (len(rest) - 1) / count)] for number in range(count))]


def _as_known(record: ExperienceRecord, query: Query) -> Known:
    """A record as a known configuration, seen from the query: failed unless it was correct and has a speedup."""
    is_here = record.graph_signature == query.graph_signature
    is_same = is_here and (record.shape_class, record.device) == (query.shape_class, query.device)
    graph = "" if is_here else record.graph_signature
    site = "" if is_same else f"{record.shape_class} {record.device}"
    if record.outcome != "correct" or not record.child_speedup:
        return Known(
            record.run,
            structure="",
            kernels=record.kernels,
            log_speedup=0.0,
            deviation=0.0,
            graph=graph,
            site=site,
            failed=True,
        )
    low, high = record.child_ci95 or (record.child_speedup, record.child_speedup)
    deviation = (math.log(high) - math.log(low)) / 4 if 0 < low <= high < math.inf else 0.1
    structure = " ".join(kernel.place for kernel in record.kernels)
    return Known(
        record.run,
        structure,
        kernels=record.kernels,
        log_speedup=math.log(record.child_speedup),
        deviation=deviation,
        graph=graph,
        site=site,
    )


def _likeness(record: ExperienceRecord, query: Query) -> float:
    """Similarity of a record's graph, device and size to the query's."""
    theirs, wanted = set(record.op_kinds), set(query.op_kinds)
    shared = len(theirs & wanted) / max(1, len(theirs | wanted))
    same = record.graph_signature == query.graph_signature
    return 2.0 * same + shared + 0.5 * (record.device == query.device) + 0.5 * (record.shape_class == query.shape_class)


def _rank(hit: Hit) -> tuple[float, float, float, str]:
    """Sort key of hits: winners, nearness, size of the effect, id."""
    record = hit.record
    best = float(record.is_run_best and hit.nearness > SIMILAR)
    return (-best, -hit.nearness, -abs(record.log_lift or 0.0), record.id)
