"""What is read of Hydra, and what happens if a launcher has changed.

The real launchers start runs in tests/integrations/test_launchers.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from aboard.track.launchers import Launch, find_launch


@pytest.fixture
def hydra():
    """Return a function that makes the configuration of a process of Hydra."""
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig

    ConfigStore.instance().store(name="launchers", node={"lr": 1.0, "name": "", "depth": 3})

    def configure(*overrides):
        with initialize(version_base=None):
            config = compose("launchers", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)

    yield configure
    HydraConfig.instance().cfg = None


def test_no_launcher():
    assert find_launch() == Launch()


def test_overrides_are_hyperparameters(hydra):
    hydra("lr=0.1", "name='a b'", "~depth", "+new.depth=4", "++flag=true")
    expected = {"lr": 0.1, "name": "a b", "new.depth": 4, "flag": True}
    assert find_launch() == Launch(hparams=expected)


def test_a_member_of_a_sweep(hydra):
    sweep = ["hydra.mode=MULTIRUN", "hydra.job.num=4", "hydra.job.id=4"]
    hydra(*sweep, "hydra.sweep.dir=multirun/2030-01-31/12-00-00")
    assert find_launch() == Launch("2030-01-31_12-00-00", "2030-01-31_12-00-00_4")
    hydra(*sweep, "hydra.sweep.dir=lr")
    assert find_launch() == Launch("lr", "lr_4")


def test_values_of_hydra_and_a_job_of_ray(hydra, monkeypatch):
    hydra("lr=0.1")
    monkeypatch.setitem(sys.modules, "ray", ray := ModuleType("ray"))
    ray.is_initialized = lambda: True
    context = SimpleNamespace(
        get_job_id=lambda: "01000000", get_session_name=lambda: "session_2030-01-31_12-00-00_1_2"
    )
    ray.get_runtime_context = lambda: context
    job = "2030-01-31_12-00-00_1_2_01000000"
    assert find_launch() == Launch(job, "01000000", {"lr": 0.1})


def test_a_launcher_that_changed_does_not_stop_the_training(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", changed := ModuleType("ray"))
    changed.is_initialized = lambda: True
    assert find_launch() == Launch()
    said = "the job of this run is not known. ray: AttributeError: module 'ray' has no attribute"
    assert said in capsys.readouterr().err
