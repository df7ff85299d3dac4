"""How long to wait between two polls."""

from aboard.tensorboard.follower import Schedule


def test_a_bucket_is_polled_less_often_while_nothing_changes():
    schedule = Schedule(5.0, 60.0)
    waits = [schedule.after(changed=False, cost=0.1) for _ in range(12)]
    assert waits[0] == 5.0
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
    assert schedule.after(changed=True, cost=0.1) == 5.0


def test_a_slow_poll_is_repeated_less_often():
    schedule = Schedule(0.4, 5.0, grows=False)
    assert [schedule.after(changed=False, cost=0.01) for _ in range(3)] == [0.4, 0.4, 0.4]
    assert schedule.after(changed=False, cost=0.2) == 2.0
    assert schedule.after(changed=False, cost=9.0) == 5.0
    assert schedule.after(changed=True, cost=30.0) == 5.0
    schedule.after(changed=False, cost=0.01)
    assert schedule.after(changed=True, cost=30.0) == 0.4


def test_a_large_tree_with_a_live_run_leaves_most_of_the_time_to_others():
    schedule = Schedule(0.4, 5.0, grows=False)
    schedule.after(changed=False, cost=0.2)
    assert schedule.after(changed=True, cost=3.0) == 2.0
    assert schedule.floor == 2.0
