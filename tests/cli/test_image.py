"""`aboard image` without a daemon that could build one; tests/executors/docker has the rest."""


def test_without_a_daemon_it_says_which_and_what_to_check(aboard, tmp_path):
    done = aboard("image", "build", "--host", f"unix://{tmp_path}/docker.sock", process=True)
    assert done.code == 1
    assert done.out == ""
    assert done.err == (
        f"aboard: unix://{tmp_path}/docker.sock: Docker does not answer: no such file or directory."
        " Check: docker info\n"
    )


def test_alone_it_shows_its_commands(aboard):
    done = aboard("image")
    assert "build" in done.out + done.err
