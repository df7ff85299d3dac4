"""Times queries of MLflow's store on SQLite; runs in an environment with MLflow.

    python mlflow_runs.py RUNS.jsonl TIMES

Writes the runs directly into the store's tables. Prints the seconds of each query as JSON.
"""

import json
import sys
import time
from pathlib import Path

from mlflow.entities import ViewType
from mlflow.store.tracking.dbmodels.models import (
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

listed, times = Path(sys.argv[1]), int(sys.argv[2])
store = SqlAlchemyStore(f"sqlite:///{listed.parent}/mlflow.db", f"file://{listed.parent}/artifacts")
experiment = store.create_experiment("bench")
runs, params, tags, metrics = [], [], [], []
for number, line in enumerate(listed.open()):
    name, state, created, ended, hparams, values = json.loads(line)
    key = f"{number:032x}"
    runs.append(
        {
            "run_uuid": key,
            "name": name,
            "status": "FINISHED" if state == "completed" else "FAILED",
            "start_time": int(created * 1000),
            "end_time": int(ended * 1000),
            "lifecycle_stage": "active",
            "experiment_id": int(experiment),
            "source_type": "LOCAL",
            "user_id": "bench",
        }
    )
    params += [{"run_uuid": key, "key": one, "value": str(held)} for one, held in hparams.items()]
    # MLflow's pages need the tags that its client sets on every run.
    given = {"mlflow.runName": name, "mlflow.user": "bench", "mlflow.source.type": "LOCAL"}
    tags += [{"run_uuid": key, "key": one, "value": held} for one, held in given.items()]
    metrics += [
        {"run_uuid": key, "key": one, "value": held, "timestamp": 1, "step": 0, "is_nan": False}
        for one, held in values.items()
    ]
with store.ManagedSessionMaker() as session:
    session.bulk_insert_mappings(SqlRun, runs)
    session.bulk_insert_mappings(SqlParam, params)
    session.bulk_insert_mappings(SqlTag, tags)
    session.bulk_insert_mappings(SqlMetric, metrics)
    session.bulk_insert_mappings(SqlLatestMetric, metrics)

QUESTIONS = {
    "first page": ("", []),
    "filter, sort, first page": ("params.opt = 'adam' and metrics.m1 < 0.1", ["metrics.m3 DESC"]),
    "loose filter, sort, first page": ("attributes.status = 'FINISHED'", ["metrics.m3 DESC"]),
}
found = {}
for name, (condition, order) in QUESTIONS.items():
    found[name] = []
    for _ in range(times):
        began = time.perf_counter()
        page = store.search_runs(
            [experiment], condition, ViewType.ACTIVE_ONLY, max_results=100, order_by=order
        )
        found[name].append(time.perf_counter() - began)
        if not page:
            sys.exit(f"mlflow found no runs: {name}")
print(json.dumps(found))
