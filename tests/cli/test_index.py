"""`aboard index`."""

import re
import shutil


def test_index_says_what_it_found(aboard, tree):
    first = aboard("index", tree)
    lines = first.out.splitlines()
    assert lines[:5] == [
        str(tree),
        "  holds    2 directories with event files",
        "  series   5",
        "  points   15",
        "  records  2 (text 1, images 1)",
    ]
    assert lines[6].startswith("  read     ")
    assert " from 2 files in " in lines[6]
    assert lines[-2] == ""
    assert re.fullmatch(r"The index is /.+/cache/index-\d+\.db, \d.* kB\.", lines[-1])
    assert "  read     0 B from 0 files in " in aboard("index", tree).out
    assert " from 2 files in " in aboard("index", "--rebuild", tree).out


def test_json_of_index(aboard, tree, variables):
    document = aboard("index", "--json", tree).json
    (source,) = document["sources"]
    assert document["index"].startswith(variables["ABOARD_CACHE"])
    assert document["index_bytes"] > 16_384
    assert source["points"] == 15
    assert source["records"] == {"text": 1, "images": 1}
    assert source["read"]["files"] == 2
    assert source["read"]["events"] == source["events"] == 19


def test_a_source_is_forgotten_also_when_it_is_gone(aboard, tree, tmp_path):
    shutil.copytree(tree, tmp_path / "other")
    aboard("index", tree, "other")
    shutil.rmtree(tree)
    forgotten = aboard("index", "--forget", tree)
    assert forgotten.code == 0
    assert forgotten.out.splitlines()[:2] == [
        str(tree),
        "  forgot   2 directories with event files: 2 files, 17 values",
    ]
    assert forgotten.out.splitlines()[-1].startswith("The index is ")
    assert aboard("index", "--forget", tree) == (
        1,
        "",
        (
            f"aboard: {tree} is not in the index. Name it as it was when it was read;"
            " 'aboard index' without --forget reads it.\n"
        ),
    )
    read = aboard("index", "other", "--json").json["sources"][0]["read"]
    assert (read["files"], read["files_unchanged"]) == (0, 2)


def test_json_of_forgetting(aboard, tree):
    aboard("index", tree)
    result = aboard("index", "--forget", "--json", tree, "/not/there")
    assert result.code == 1
    document = result.json
    assert document["forgotten"] == [
        {"source": str(tree), "runs": 2, "files": 2, "values": 17, "records": 0}
    ]
    assert [one["source"] for one in document["errors"]] == ["/not/there"]
    assert document["sources"] == document["notices"] == []
    assert document["index_bytes"] > 0


def test_a_directory_with_the_name_of_an_event_file_is_forgotten(aboard, tree, tmp_path):
    shutil.copytree(tree, tmp_path / "old.tfevents.1")
    aboard("index", "old.tfevents.1")
    shutil.rmtree(tmp_path / "old.tfevents.1")
    assert "forgot   2 directories" in aboard("index", "--forget", "old.tfevents.1").out


def test_forgetting_and_reading_again_exclude_each_other(aboard, tree):
    assert aboard("index", "--forget", "--rebuild", tree) == (
        2,
        "",
        "aboard: use only one of --rebuild and --forget.\n",
    )
