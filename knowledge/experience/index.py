"""The Chroma index over the journal: rebuildable, owned by one process at a time.

An embedded Chroma opened by two processes loses vectors, so the owner holds a file lock. A process without the lock
searches the journal's vectors directly, which is exact and slower.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlparse

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.errors import UsageError
from foundry.knowledge.experience.embedding import EMBEDDER, embed
from foundry.knowledge.experience.journal import VERSION, LessonJournal
from foundry.knowledge.experience.record import ExperienceRecord

if TYPE_CHECKING:
    from chromadb.api import ClientAPI

BATCH = 200
COLLECTION = f"experience-{VERSION}"
STAMP = f"{EMBEDDER} of version {VERSION}"  # versions an index was made with; an index with another stamp is rebuilt


def index_text(record: ExperienceRecord) -> str:
    """The text of a record on which similarity is computed: operators, shape, limiter, move, the sentence."""
    return " ".join([*record.op_kinds, record.shape_class, record.limiter, record.move, record.text])


class Index(Protocol):
    """Similarity search over live records; `near` returns (record, cosine similarity), best first."""

    kind: str

    def near(self, text: str, target: str, k: int) -> list[tuple[ExperienceRecord, float]]: ...

    def sync(self, journal: LessonJournal) -> int: ...

    def rebuild(self, journal: LessonJournal) -> int: ...

    def close(self) -> None: ...


class ScanIndex:
    """An index without Chroma: compares every live record's vector. Exact; about 0.2 ms a record the first time."""

    kind = "scan"

    def __init__(self) -> None:
        """An empty index."""
        self._rows: dict[str, tuple[ExperienceRecord, Any]] = {}  # each record with its vector
        self._seq = 0

    def sync(self, journal: LessonJournal) -> int:
        """Adds the journal's records that are not yet indexed, and drops withdrawn ones."""
        import numpy as np

        rows = journal.after(self._seq)
        for seq, record in rows:
            self._rows[record.id] = (record, np.array(embed(index_text(record))))
            self._seq = seq
        for gone in journal.forgotten() & self._rows.keys():
            del self._rows[gone]
        return len(rows)

    def rebuild(self, journal: LessonJournal) -> int:
        """Drops all rows and reads the journal anew; returns the number of records."""
        self._rows.clear()
        self._seq = 0
        return self.sync(journal)

    def near(self, text: str, target: str, k: int) -> list[tuple[ExperienceRecord, float]]:
        """Up to k records of a target nearest to the text, with their cosine similarity."""
        import numpy as np

        rows = [row for row in self._rows.values() if row[0].target == target]
        if not rows:
            return []
        cosines = np.array([vector for _, vector in rows]) @ np.array(embed(text))
        scored = [(record, float(cosine)) for (record, _), cosine in zip(rows, cosines, strict=True)]
        return sorted(scored, key=lambda pair: (-pair[1], pair[0].id))[:k]

    def close(self) -> None:
        """Forgets all rows."""
        self._rows.clear()


class ChromaIndex:
    """A Chroma collection, embedded under a file lock or on a server."""

    def __init__(self, client: ClientAPI, kind: str, state: Path, lock: Any = None) -> None:
        """Opens the collection. `state` is the file with the journal's position; `lock` an open file that holds the
        folder's lock."""
        self.kind = kind
        self._client = client
        self._state = state  # position in the journal up to which it is indexed, and by which embedder
        self._lock = lock
        self._turn = threading.RLock()  # a query beside an insertion fails with "Error finding id" under load
        self._collection = self._open_collection()

    @classmethod
    def open_embedded(cls, folder: Path) -> ChromaIndex | None:
        """The index in `folder`, or None if another process owns it. A damaged index is deleted, and rebuilt at the
        next sync."""
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "owner.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        import chromadb
        from chromadb.config import Settings

        for attempt in (1, 2):
            chroma = _generation(folder)
            try:
                client = chromadb.PersistentClient(path=str(chroma), settings=Settings(anonymized_telemetry=False))
                index = cls(client, "chroma", folder / "indexed.json", lock)
                index.near("probe", "cpu", 1)
                return index
            except Exception:  # whatever a damaged index raises, the journal can rebuild it
                if attempt == 2:
                    lock.close()
                    raise
                # Chroma caches the failed system by its path, so the next one gets another name.
                _generation(folder, after=chroma).mkdir()
                shutil.rmtree(chroma, ignore_errors=True)
                (folder / "indexed.json").unlink(missing_ok=True)
        return None

    @classmethod
    def server(cls, url: str, folder: Path) -> ChromaIndex:
        """Opens the index on a Chroma server, with a folder for its state; raises UsageError if the server does not
        answer."""
        import chromadb
        from chromadb.config import Settings

        folder.mkdir(parents=True, exist_ok=True)
        address = urlparse(url)
        try:
            client = chromadb.HttpClient(
                host=address.hostname or "localhost",
                port=address.port or (443 if address.scheme == "https" else 8000),
                ssl=address.scheme == "https",
                settings=Settings(anonymized_telemetry=False),
            )
            return cls(client, "chroma server", folder / "pushed.json")
        except ValueError as error:
            raise UsageError(f"no Chroma server answers at {url}: {error}") from error

    def sync(self, journal: LessonJournal) -> int:
        """Indexes new records of the journal and drops forgotten ones; returns the number added."""
        with self._turn:
            return self._sync(journal)

    def _sync(self, journal: LessonJournal) -> int:
        """Adds the journal's records that are not yet indexed and deletes forgotten ones; returns the number of those
        added."""
        rows = journal.after(self._indexed())
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            self._collection.upsert(
                ids=[record.id for _, record in batch],
                embeddings=[embed(index_text(record)) for _, record in batch],
                metadatas=[{"target": record.target, "device": record.device} for _, record in batch],
                documents=[encode(record) for _, record in batch],
            )
            self._state.write_text(json.dumps({"stamp": STAMP, "seq": batch[-1][0]}))
        gone = sorted(journal.forgotten())
        for start in range(0, len(gone), BATCH):
            self._collection.delete(ids=gone[start : start + BATCH])
        return len(rows)

    def rebuild(self, journal: LessonJournal) -> int:
        """Deletes the collection and indexes the journal anew; returns the number of records."""
        with self._turn:
            self._client.delete_collection(COLLECTION)
            self._state.unlink(missing_ok=True)
            self._collection = self._open_collection()
            return self._sync(journal)

    def near(self, text: str, target: str, k: int) -> list[tuple[ExperienceRecord, float]]:
        """Up to k records of a target nearest to the text, with their cosine similarity."""
        with self._turn:
            count = self._collection.count()
            if count == 0:
                return []
            found = self._collection.query(
                query_embeddings=[embed(text)],
                n_results=min(k, count),
                where={"target": target},
                include=["documents", "distances"],
            )
        documents: Sequence[str] = (found["documents"] or [[]])[0]
        distances: Sequence[float] = (found["distances"] or [[]])[0]
        return [
            (decode(ExperienceRecord, body), 1.0 - float(far)) for body, far in zip(documents, distances, strict=True)
        ]

    def close(self) -> None:
        """Releases the folder's lock, if this index holds it."""
        if self._lock is not None:
            self._lock.close()  # releases the flock
            self._lock = None

    def _open_collection(self) -> Any:
        """The collection, made if it is absent, or made anew if another embedder filled it."""
        collection = self._client.get_or_create_collection(
            COLLECTION,
            embedding_function=None,
            configuration={"hnsw": {"space": "cosine"}},
            metadata={"embedder": EMBEDDER},
        )
        if (collection.metadata or {}).get("embedder") != EMBEDDER:
            self._client.delete_collection(COLLECTION)
            self._state.unlink(missing_ok=True)
            return self._open_collection()
        return collection

    def _indexed(self) -> int:
        """Position in the journal up to which it is indexed; 0 for an index with another stamp."""
        try:
            state = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return 0
        return int(state["seq"]) if state.get("stamp") == STAMP else 0


def _generation(folder: Path, after: Path | None = None) -> Path:
    """The newest `chroma-N` folder of an index, or the one to follow `after`."""
    if after is not None:
        return folder / f"chroma-{int(after.name.split('-')[1]) + 1}"
    numbers = [int(path.name.split("-")[1]) for path in folder.glob("chroma-*")]
    return folder / f"chroma-{max(numbers, default=1)}"
