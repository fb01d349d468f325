"""``export croissant``: a corpus in the terms of Croissant 1.1 (MLCommons), which search engines and loaders read.

Nothing in it is guessed: files, sizes and digests are the manifest's, sources and licences are counted from the
document tables, and what only people know (who publishes the corpus, and where) is given or left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import polars as pl

from millstream.audit.commitments import read_roots
from millstream.audit.origins import licence_url, origins_of
from millstream.stream.corpora import Corpus
from millstream.tokenize.manifest import FileEntry, Manifest, Shard

CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
TAR = "application/x-tar"
PARQUET = ["application/vnd.apache.parquet", "application/x-parquet"]
"""The registered name, and the one that loaders went by before there was one."""
JSON = "application/json"
NPY = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"

_OWN = [
    "annotation",
    "arrayShape",
    "citeAs",
    "column",
    "containedIn",
    "equivalentProperty",
    "excludes",
    "extract",
    "field",
    "fileObject",
    "fileProperty",
    "fileSet",
    "format",
    "includes",
    "isArray",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "readLines",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "sdVersion",
    "separator",
    "source",
    "subField",
    "transform",
    "unArchive",
    "value",
]
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
} | {term: f"cr:{term}" for term in _OWN}
"""The specification's own, with PROV-O; ``https`` for schema.org as in the datasets that its authors publish."""

Fields = Sequence[tuple[str, str, str]]
"""Column, data type, description."""

_KEY = "32 bytes: SHA-256 of the text {}, Unicode NFC, CRLF as LF"
DOCUMENTS: Fields = (
    ("doc_key", "sc:Text", _KEY.format("as read")),
    ("text_key", "sc:Text", _KEY.format("as tokenized")),
    ("doc_id", "sc:Text", "Source, path below its root, and record"),
    ("source", "sc:Text", "The source's name"),
    ("url", "sc:URL", "Address of the document, where it has one"),
    ("licence", "sc:Text", "Licence of the document, where one is known"),
    ("n_bytes", "cr:Int64", "Bytes of UTF-8 text"),
    ("n_tokens", "cr:Int64", "Tokens, BOS and EOS among them"),
    ("token_start", "cr:Int64", "Position of its first token in the domain"),
    ("shard", "cr:Int32", "Number of the shard"),
    ("chunk", "cr:Int32", "Number of the chunk in the shard"),
)
EXCLUSIONS: Fields = (
    ("doc_id", "sc:Text", "Source, path below its root, and record"),
    ("doc_key", "sc:Text", _KEY.format("as read") + "; none where it could not be read"),
    ("domain", "sc:Text", "The domain that it was read for"),
    ("stage", "sc:Text", "Stage of the build that dropped it"),
    ("rule", "sc:Text", "Rule that dropped it"),
    ("value", "sc:Text", "What the rule measured"),
    ("threshold", "sc:Text", "The rule's limit"),
    ("kept_key", "sc:Text", "Key of the document that stays instead, of duplicates"),
)
DOMAINS: Fields = (
    ("name", "sc:Text", "The domain's name"),
    ("read", "cr:Int64", "Records read"),
    ("documents", "cr:Int64", "Documents kept for training"),
    ("held_out", "cr:Int64", "Documents kept for evaluation, in no plan"),
    ("excluded", "cr:Int64", "Records dropped"),
    ("tokens", "cr:Int64", "Tokens for training"),
    ("bytes", "cr:Int64", "Bytes of UTF-8 text for training"),
)
ORIGINS: Fields = (
    ("domain", "sc:Text", "The domain"),
    ("part", "sc:Text", "train or holdout"),
    ("source", "sc:Text", "The source's name"),
    ("licence", "sc:Text", "Licence of the documents; none where it is not known"),
    ("documents", "cr:Int64", "Documents"),
    ("tokens", "cr:Int64", "Tokens"),
    ("bytes", "cr:Int64", "Bytes of UTF-8 text"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What a corpus does not know of itself."""

    url: str | None = None
    """Page of the corpus."""
    creators: tuple[str, ...] = ()
    """Organizations that made it."""
    description: str | None = None


def croissant_of(corpus: Corpus, about: Publication) -> dict[str, Any]:
    """A corpus as Croissant 1.1, to lie beside its manifest: addresses of files are relative to the corpus folder.

    The same corpus gives the same metadata.

    Raises:
        InputError: a document table is missing or damaged.
    """
    manifest = corpus.manifest
    origins = origins_of(corpus)
    tokens, documents = (sum(getattr(d, name) for d in manifest.domains) for name in ("tokens", "documents"))
    name = str(manifest.build.get("name", "corpus"))
    told = (
        f"{documents:,} documents in {len(manifest.domains)} domains, {tokens:,} tokens, as webdataset shards with a "
        f"table of every document and of every record that was left out"
    )
    found: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": about.description or told,
        "identifier": _identifiers(corpus),
        "version": f"1.0.0+{manifest.corpus_id[:16]}",
        "datePublished": manifest.build["finished"],
        "license": _licences(origins),
        "prov:wasDerivedFrom": list(_sources(manifest, origins)),
        "prov:wasGeneratedBy": _activity(manifest),
        "distribution": [*map(_file_object, manifest.files()), *_file_sets(manifest)],
        "recordSet": list(_record_sets(manifest, origins)),
    }
    if about.url:
        found["url"] = about.url
    if about.creators:
        found["creator"] = [{"@type": "sc:Organization", "name": creator} for creator in about.creators]
    return found


def missing_from(metadata: Mapping[str, Any]) -> list[str]:
    """Properties that Croissant requires and that nobody gave."""
    return [name for name in ("creator", "license", "url") if not metadata.get(name)]


def _licences(origins: pl.DataFrame) -> list[Any]:
    names = sorted(set(origins["licence"].drop_nulls()))
    return [licence_url(name) or {"@type": "sc:CreativeWork", "name": name} for name in names]


def _sources(manifest: Manifest, origins: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Sources that documents were kept from, as the recipe names them; never by a path of the machine."""
    packages = manifest.build.get("packages", {})
    for source in manifest.corpus["sources"]:
        own = origins.filter(pl.col("source") == source["name"])
        if not len(own):
            continue
        about = {"@type": "prov:Entity", "@id": f"source/{source['name']}", "name": source["name"]}
        if package := source.get("package"):
            version = source.get("version") or packages.get(package)
            about["identifier"] = f"pkg:pypi/{package}" + (f"@{version}" if version else "")
        elif "://" in (root := source["root"]) and not root.startswith("file:"):
            # A user's name, a password or a signed query is nobody else's business.
            place = urlsplit(root)
            about["url"] = urlunsplit((place.scheme, place.netloc.rpartition("@")[2], place.path, "", ""))
        yield about | {"license": _licences(own)}


def _identifiers(corpus: Corpus) -> list[dict[str, Any]]:
    """The corpus id and, where they were computed, the roots that proofs about the corpus rest on."""
    named = {"corpus_id": corpus.manifest.corpus_id}
    roots = read_roots(corpus.root, corpus.manifest)
    if roots is not None:
        named |= {"documents_root": roots.documents_root, "keys_root": roots.keys_root}
    return [{"@type": "sc:PropertyValue", "propertyID": name, "value": value} for name, value in named.items()]


def _activity(manifest: Manifest) -> dict[str, Any]:
    build = manifest.build
    agents = {"millstream": build["millstream"], "Python": build["python"], **build["libraries"]}
    return {
        "@type": "prov:Activity",
        "prov:label": "filtered, deduplicated, tokenized and sharded by the recipe's corpus section",
        "prov:endedAtTime": build["finished"],
        "prov:used": f"sha256:{manifest.corpus_digest}",
        "prov:wasAssociatedWith": [
            {"@type": "prov:SoftwareAgent", "prov:label": f"{name} {version}"} for name, version in agents.items()
        ],
    }


def _file_object(entry: FileEntry) -> dict[str, Any]:
    formats = {".tar": TAR, ".parquet": PARQUET, ".json": JSON}
    return {
        "@type": "cr:FileObject",
        "@id": entry.path,
        "name": entry.path,
        "contentUrl": entry.path,
        "contentSize": f"{entry.bytes} B",
        "encodingFormat": formats[entry.path[entry.path.rindex(".") :]],
        "sha256": entry.sha256,
    }


def _file_sets(manifest: Manifest) -> Iterator[dict[str, Any]]:
    training = [shard for domain in manifest.domains for shard in domain.shards]
    held_out = [domain.holdout for domain in manifest.domains if domain.holdout]
    yield _tables("documents-tables", "Tables of the documents for training", [s.documents for s in training])
    if held_out:
        yield _tables("holdout-tables", "Tables of the held-out documents", [s.documents for s in held_out])
    if manifest.exclusions:
        yield _tables("exclusions-tables", "Tables of the records that were dropped", manifest.exclusions)
    yield _members("token-arrays", "Tokens, one array a chunk of whole documents", NPY, "*.tokens.npy", training)
    if held_out:
        yield _members("holdout-arrays", "Tokens of held-out documents", NPY, "*.tokens.npy", held_out)


def _tables(name: str, description: str, entries: Sequence[FileEntry]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "description": description,
        "encodingFormat": PARQUET,
        "includes": [entry.path for entry in entries],
    }


def _members(name: str, description: str, kind: str, pattern: str, shards: Sequence[Shard]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "description": description,
        "containedIn": [{"@id": shard.tar.path} for shard in shards],
        "encodingFormat": kind,
        "includes": pattern,
    }


def _record_sets(manifest: Manifest, origins: pl.DataFrame) -> Iterator[dict[str, Any]]:
    yield _inline("domains", "What was read and kept, by domain", DOMAINS, _domains(manifest)) | {
        "key": {"@id": "domains/name"}
    }
    yield _inline("origins", "Documents by source and licence", ORIGINS, origins.rows())
    yield _of_tables("documents", "Documents for training, in stream order", DOCUMENTS, "documents-tables")
    yield _of_members("tokens", "Tokens for training", "token-arrays", manifest.tokenizer.dtype)
    if any(domain.holdout for domain in manifest.domains):
        yield _of_tables("holdout", "Held-out documents, in no plan", DOCUMENTS, "holdout-tables")
        yield _of_members("holdout-tokens", "Tokens of them", "holdout-arrays", manifest.tokenizer.dtype)
    if manifest.exclusions:
        yield _of_tables("exclusions", "Every record that was dropped, and why", EXCLUSIONS, "exclusions-tables")


def _domains(manifest: Manifest) -> list[tuple[Any, ...]]:
    return [
        (
            d.name,
            d.read,
            d.documents,
            d.holdout.document_count if d.holdout else 0,
            sum(d.exclusions.values()),
            d.tokens,
            d.bytes,
        )
        for d in manifest.domains
    ]


def _inline(name: str, description: str, fields: Fields, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    ids = [f"{name}/{column}" for column, _, _ in fields]
    return _record_set(name, description, [_field(name, *field) for field in fields]) | {
        "data": [dict(zip(ids, row, strict=True)) for row in rows]
    }


def _of_tables(name: str, description: str, fields: Fields, files: str) -> dict[str, Any]:
    found = [
        _field(name, *field) | {"source": {"fileSet": {"@id": files}, "extract": {"column": field[0]}}}
        for field in fields
    ]
    return _record_set(name, description, found)


def _of_members(name: str, description: str, files: str, dtype: str) -> dict[str, Any]:
    key = _field(name, "key", "sc:Text", "The chunk's key in the shard") | {
        "source": {
            "fileSet": {"@id": files},
            "extract": {"fileProperty": "filename"},
            "transform": {"regex": r"^(.*)\.tokens\.npy$"},
        }
    }
    array = _field(name, "npy", "sc:Text", f"The array's file: NumPy's format 1.0, one-dimensional, {dtype}") | {
        "source": {"fileSet": {"@id": files}, "extract": {"fileProperty": "content"}}
    }
    return _record_set(name, description, [key, array])


def _record_set(name: str, description: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": description, "field": fields}


def _field(record_set: str, column: str, kind: str, description: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{record_set}/{column}",
        "name": column,
        "description": description,
        "dataType": kind,
    }
