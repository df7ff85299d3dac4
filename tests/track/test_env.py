"""What the environment says, and what we say there."""

import pytest

from aboard.track import env


def test_every_name_for_the_log_directory_is_set() -> None:
    told = env.variables_for("s3://b/runs", "cifar10", "run3", "/spool/x")
    assert told.pop("ABOARD_ROOT") == "s3://b/runs"
    assert told.pop("ABOARD_RUN") == "cifar10/run3"
    assert told == dict.fromkeys(
        [
            "ABOARD_LOGDIR",
            "PAI_OUTPUT_TENSORBOARD",
            "AIP_TENSORBOARD_LOG_DIR",
            "XT_OUTPUT_MNT",
            "TENSORBOARD_LOGGING_DIR",
        ],
        "/spool/x",
    )
    for name in told:
        if name != "TENSORBOARD_LOGGING_DIR":
            assert env.logdir_from_environment({name: "/there"}) == "/there"


def test_a_silent_rank_is_told_only_where_to_log() -> None:
    told = env.variables_for("", "", "", "/tmp/x")
    assert told["ABOARD_LOGDIR"] == "/tmp/x"
    assert not {"ABOARD_ROOT", "ABOARD_RUN"} & set(told)


def test_our_own_name_comes_first() -> None:
    both = {"PAI_OUTPUT_TENSORBOARD": "/theirs", "ABOARD_LOGDIR": "/ours"}
    assert env.logdir_from_environment(both) == "/ours"
    assert env.logdir_from_environment({"ABOARD_LOGDIR": "", "XT_OUTPUT_MNT": ""}) is None


@pytest.mark.parametrize(
    ("value", "named"),
    [("cifar10/run3", ("cifar10", "run3")), ("run3", ("", "run3")), ("", None), ("a/", None)],
)
def test_the_named_run(value: str, named: tuple[str, str] | None) -> None:
    assert env.named_run({"ABOARD_RUN": value}) == named


def test_the_job_of_each_scheduler() -> None:
    assert env.job_of({}) == ""
    assert env.job_of({"SLURM_JOB_ID": "17"}) == "17"
    array = {"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    assert env.job_of(array) == "17_2"
    for name in ("LSB_JOBID", "PBS_JOBID", "CLOUD_ML_JOB_ID"):
        assert env.job_of({name: "x"}) == "x"


def test_a_restart() -> None:
    assert not env.was_restarted({})
    assert not env.was_restarted({"TORCHELASTIC_RESTART_COUNT": "0"})
    assert env.was_restarted({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert env.was_restarted({"SLURM_RESTART_COUNT": "2"})


def test_what_is_the_same_after_a_restart() -> None:
    slurm = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
    key = env.restart_key(["train.py"], slurm)
    assert key
    assert env.restart_key(["train.py"], slurm | {"SLURM_RESTART_COUNT": "1"}) == key
    assert env.restart_key(["other.py"], slurm) != key
    assert env.restart_key(["train.py"], slurm | {"SLURM_JOB_ID": "18"}) != key
    assert env.restart_key(["train.py"], {"TORCHELASTIC_RUN_ID": "x"})
    assert env.restart_key(["train.py"], {}) == ""
