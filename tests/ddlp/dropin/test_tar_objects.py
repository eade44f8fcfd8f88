"""`ddlp.TarObjects` with an engine: it gets the samples' bytes from this host. All else is in tests/ddlp/objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlp import DDLPLoader, TarImages, TarObjects
from tests.ddlp.dropin.small_sets import RANDOM
from tests.ddlp.dropin.test_objects import check, content
from tests.ddlp.dropin.test_tars import write_shards
from tests.object_server import BUCKET, ObjectServer

pytest.importorskip("obstore")


@pytest.mark.parametrize("strategy", ["csd", "wrr"])
def test_an_engine_gets_the_bytes_from_the_host(tmp_path, engine, strategy):
    shards = write_shards(tmp_path)
    expected = list(DDLPLoader(TarImages(shards, RANDOM), 4, seed=3))
    with ObjectServer({Path(path).name: Path(path).read_bytes() for path in shards}) as server:
        dataset = TarObjects(f"s3://{BUCKET}/train-{{000..002}}.tar", RANDOM, config=server.config(), index_dir=tmp_path)
        loader = DDLPLoader(dataset, 4, strategy=strategy, spool=engine, seed=3)
        check(sorted(loader, key=content), sorted(expected, key=content))  # wrr's order is its own
        assert strategy != "csd" or loader.report().batches_csd == len(loader)
