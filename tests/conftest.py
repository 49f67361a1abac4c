"""What holds for every test: nothing is fetched, and a slow machine fails no property test."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from radixrt.config import EngineConfig, Hardware, resolve
from radixrt.runner.loader import LoadedModel, load_model

# Read by huggingface_hub when it is first imported, so it is set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("radixrt", settings(), deadline=None)
settings.load_profile("radixrt")


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The default model in float32, loaded once."""
    return load_model(resolve(EngineConfig(), Hardware()).model)
