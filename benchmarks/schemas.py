"""What many distinct schemas leave in memory: each is compiled once, walked by one made-up answer, and never asked for again.

    python benchmarks/schemas.py [--schemas 10000] [--every 1000] [--json FILE]

Prints the resident memory of this process as it goes (MiB), and how many grammars are kept in how many bytes by their own count.
Compiling processes are not in it: such schemas are cheap and are compiled here.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from radixrt.config import GrammarConfig, ModelConfig
from radixrt.engine.grammars import compile_service
from radixrt.grammar import spec
from radixrt.grammar.closer import close_tokens
from radixrt.types import ModelInfo

TYPES: list[dict[str, Any]] = [
    {"type": "string"}, {"type": "string", "maxLength": 40}, {"type": "integer", "minimum": 0, "maximum": 1000}, {"type": "number"},
    {"type": "boolean"}, {"enum": ["red", "green", "blue"]}, {"type": "array", "items": {"type": "string"}, "maxItems": 4},
]  # fmt: skip


def schema(index: int) -> dict[str, Any]:
    """The schema of an index: three to eight fields, whose names tell it from all others."""
    chosen = random.Random(index)
    fields = {f"field_{index}_{number}": chosen.choice(TYPES) for number in range(chosen.randint(3, 8))}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--model-path", default=ModelConfig().model_path)
    parser.add_argument("--vocabulary", type=int, default=49_152, help="the width of the model's logits")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = ModelConfig(model_path=given.model_path)
    info = ModelInfo(
        model_path=given.model_path, architecture="", vocab_size=given.vocabulary, context_length=8192, capacity_tokens=8192
    )
    service = compile_service(model, GrammarConfig(), info)
    process, rows = psutil.Process(), []
    started = time.process_time()
    for index in range(given.schemas):
        job = service.compile(spec.json_schema(schema(index)))
        grammar = job.wait(60.0)
        service.release(job)
        state = grammar.new_state()
        row = np.full(service.vocabulary.num_words, -1, dtype=np.int32)
        tokens = close_tokens(state, service.vocabulary, 400)
        assert tokens is not None
        for token in tokens:
            state.fill_mask(row)
            assert state.accept(token)
        if (index + 1) % given.every == 0:
            resident = process.memory_info().rss / 2**20
            kept = service.stats.cached_bytes / 2**20
            rows.append({"schemas": index + 1, "resident_mib": round(resident, 1), "kept_mib": round(kept, 1)})
            print(f"{index + 1:6}  resident {resident:7.1f}  kept {kept:6.1f}", flush=True)
    print(f"{1000 * (time.process_time() - started) / given.schemas:.1f} ms of processor time a schema")
    service.close()
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
