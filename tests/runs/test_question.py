"""The language that narrows runs: what is read, what is written again, and what is refused."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aboard.runs.question import (
    MAX_DEPTH,
    MAX_LENGTH,
    And,
    BadQuestion,
    Compare,
    Contains,
    Field,
    Literal,
    Missing,
    Not,
    OneOf,
    Or,
    Question,
    SortKey,
    Truth,
    UnknownField,
    each_field,
    parse,
    parse_field,
    parse_sort,
    split_fields,
    unparse,
)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('state == "completed"', Compare(Field("state"), "==", Literal("completed"))),
        ("state = 'completed'", Compare(Field("state"), "==", Literal("completed"))),
        ("hparams.lr < 0.1", Compare(Field("lr", "hparams"), "<", Literal(0.1))),
        ("0.1 > hparams.lr", Compare(Field("lr", "hparams"), "<", Literal(0.1))),
        ("hparams.depth >= -2", Compare(Field("depth", "hparams"), ">=", Literal(-2))),
        ("hparams.optimizer.lr>1", Compare(Field("optimizer.lr", "hparams"), ">", Literal(1))),
        ("hparams.batch-size>1", Compare(Field("batch-size", "hparams"), ">", Literal(1))),
        ('hparams["a b"] == true', Compare(Field("a b", "hparams"), "==", Literal(True))),
        ("hparams.amp", Truth(Field("amp", "hparams"))),
        ("commit == 'abc'", Compare(Field("git_commit"), "==", Literal("abc"))),
        ("exit_code != 0", Compare(Field("exit_code"), "!=", Literal(0))),
        ("hparams.lr == none", Missing(Field("lr", "hparams"))),
        ("none != hparams.lr", Not(Missing(Field("lr", "hparams")))),
        ('"baseline" in tags', Contains(Field("tags"), "baseline")),
        ('"x" not in tags', Not(Contains(Field("tags"), "x"))),
        ("state in ('lost',)", OneOf(Field("state"), (Literal("lost"),))),
        ("hparams.n in [1, 2.5]", OneOf(Field("n", "hparams"), (Literal(1), Literal(2.5)))),
        ("metrics.loss > 1", Compare(Field("loss", "metrics", "last"), ">", Literal(1))),
        ("metrics.eval/acc.max", Truth(Field("eval/acc", "metrics", "max"))),
        ('metrics["eval/acc"].max', Truth(Field("eval/acc", "metrics", "max"))),
        ('metrics["acc.max"]', Truth(Field("acc.max", "metrics", "last"))),
        ("metrics.a.at(-7)", Truth(Field("a", "metrics", "at", -7))),
        ('metrics["a"].at( 10 )', Truth(Field("a", "metrics", "at", 10))),
        ("tags.team == 'x'", Compare(Field("team", "tags"), "==", Literal("x"))),
        ("run or name and not user", Or((
            Truth(Field("run")), And((Truth(Field("name")), Not(Truth(Field("user"))))),
        ))),
        ("(run or name) and user", And((
            Or((Truth(Field("run")), Truth(Field("name")))), Truth(Field("user")),
        ))),
        ("1 < hparams.a < 2", And((
            Compare(Field("a", "hparams"), ">", Literal(1)),
            Compare(Field("a", "hparams"), "<", Literal(2)),
        ))),
    ],
)  # fmt: skip
def test_a_text_becomes_a_tree(text, node):
    assert parse(text) == node


def test_it_says_where_a_question_is_wrong_and_what_is_near():
    with pytest.raises(BadQuestion) as caught:
        parse('name ~ "run*" and stat == "lost"')
    assert str(caught.value) == "unknown field 'stat'. Did you mean 'state'?"
    assert caught.value.picture == (
        'name ~ "run*" and stat == "lost"\n'
        "                  ^^^^"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("state == 'complet'", "'complet' is not a state. Did you mean 'completed'?", "'complet'"),
        ("state == lost", "unknown field 'lost'. Put strings in quotes: \"lost\".", "lost"),
        ("state in (lost)", "unknown field 'lost'. Put strings in quotes: \"lost\".", "lost"),
        ("lr < 0.1", "unknown field 'lr'. For a hyperparameter write hparams.lr, for a", "lr"),
        ("lr < 0.1", "for a tag tags.lr. Fields of runs: run, ", "lr"),
        ("0.1 > lr", "for a metric metrics.lr", "lr"),
        ("dur > 3", "unknown field 'dur'. Did you mean 'duration'?", "dur"),
        ("gru > 3", "unknown field 'gru'. For a hyperparameter write hparams.gru, for a", "gru"),
        ("usr == 'a'", "unknown field 'usr'. Did you mean 'user'?", "usr"),
        ("eval/acc.max > 0.9", "for a metric metrics.eval/acc.max, for a tag", "eval/acc.max"),
        ("state & name", "write 'and' instead of '&'.", "&"),
        ("state || name", "write 'or' instead of '||'.", "||"),
        ("hparams.lr # 1", "unexpected '#'.", "#"),
        ("name == 'a", "the closing quote is missing.", "'a"),
        ("metrics['a'].mx > 1", "unknown statistic 'mx' of the metric 'a'. Did you mean", "mx"),
        ("metrics['a'].at(1.5) > 1", "the step must be an integer.", "1.5"),
        ("metrics > 1", "'metrics' needs a name.", "metrics"),
        ("hparams[lr] > 1", "a name in quotes is missing here.", "lr"),
        ("created > 'soon'", "'soon' is not a time.", "'soon'"),
        ("created > '7 ago'", "'7 ago' is not a time. Write '7d ago', '2h ago',", "'7 ago'"),
        ("created in ('soon',)", "'soon' is not a time.", "'soon'"),
        ("duration > 'long'", "'long' is not a duration.", "'long'"),
        ("tags == 'a'", "tags are a set of names.", "=="),
        ("1 == 1", "one side of a comparison must be a field.", "=="),
        ("hparams.a < none", "'none' has no order.", "<"),
        ("name ~ state", "a pattern in quotes is missing here.", "state"),
        ("'a' in created", "created is a number and cannot contain text.", "created"),
        ("state in 'lost'", "a list of values is missing here.", "'lost'"),
        ("state in ('lost'", "')' is missing to close this list.", " "),
        ("(state", "')' is missing to close this condition.", " "),
        ("state name", "unexpected 'name'.", "name"),
        ("state adn name", "unexpected 'adn'. Did you mean 'and'?", "adn"),
        ("hparams.lr <", "the query is incomplete.", " "),
        ("", "the query is incomplete.", " "),
        ("and state", "a field or a value is missing before 'and'.", "and"),
        ("3", "a comparison is missing.", "3"),
        ("hparams.lr > 1e999", "this number is too large.", "1e999"),
        ("name ~ '*a*a*a*a*a*a*a*a*a'", "a pattern can have at most 200 characters and 8 stars.",
         "'*a*a*a*a*a*a*a*a*a'"),
    ],
)  # fmt: skip
def test_what_is_refused_is_marked(text, message, marked):
    with pytest.raises(BadQuestion) as caught:
        parse(text)
    assert message in str(caught.value)
    shown, carets = caught.value.picture.split("\n") if text else (" ", "^")
    start = carets.index("^")
    assert (shown[start : len(carets)] or " ") == marked


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("lr < 0.1", "Did you mean hparams.lr?"),
        ("acc.max > 0.9", "Did you mean metrics.eval/acc.max or metrics.train/acc.max?"),
        ("accc.max > 0.9", "Did you mean metrics.eval/acc.max or metrics.train/acc.max?"),
        ("eval/acc < 1", "Did you mean metrics.eval/acc?"),
        ("loss", "Did you mean hparams.loss or metrics.loss?"),
        ("batchsize == 1", 'Did you mean hparams["batch size"]?'),
        ("baselin", "Did you mean tags.baseline?"),
        ("los.max > 1", "Did you mean metrics.loss.max?"),
        ("loss.lst < 3", "Did you mean metrics.loss.last?"),
        ("loss.p99 < 3", "Did you mean metrics.loss? Statistics: last, min, max, mean, first,"),
        ("dur > 3", "Did you mean 'duration'?"),
        ("nothing_like_it", "For a hyperparameter write hparams.nothing_like_it, for a metric"),
    ],
)
def test_a_bare_name_is_suggested_with_its_group(text, hint):
    known = {
        "hparams": ["lr", "loss", "batch size"],
        "metrics": ["eval/acc", "train/acc", "loss"],
        "tags": ["baseline"],
    }
    with pytest.raises(UnknownField) as caught:
        parse(text)
    error = caught.value.suggest(known)
    assert hint in str(error)
    assert error.picture == caught.value.picture
    assert str(caught.value.suggest({})) == str(caught.value)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("metrics.eval/acc.median", "unknown statistic 'median' of the metric 'eval/acc'."),
        ("metrics.a.wow", "unknown statistic 'wow' of the metric 'a'. Known: last, min,"),
        ("metrics.a.median.max", "unknown statistic 'median' of the metric 'a'."),
        ("metrics.layer.1", "no run has a metric 'layer.1'. Did you mean 'layer.2'?"),
        ("metrics.eval/ac", "no run has a metric 'eval/ac'. Did you mean 'eval/acc'?"),
        ("hparams.lrr", "no run has a hyperparameter 'lrr'. Did you mean 'lr'?"),
    ],
)  # fmt: skip
def test_a_name_that_no_run_has_and_an_unknown_statistic(field, message):
    known = {"metrics": ["eval/acc", "a", "layer", "layer.2"], "hparams": ["lr"]}
    for question in (Question.parse(f"{field} > 1"), Question.parse(sort=[field])):
        with pytest.raises(BadQuestion) as caught:
            question.check_names(known)
        assert str(caught.value).startswith(message)


def test_fields_are_separated_by_commas():
    fields = ["hparams.lr", "-created", '-metrics["a,b"].max']
    assert each_field(["hparams.lr,-created", fields[2]]) == fields
    assert each_field(["state, tags.x"]) == ["state", "tags.x"]
    assert list(map(str, Question.parse(sort=fields).sort)) == fields
    for text in ("", ",", " "):
        with pytest.raises(BadQuestion, match="the name of a field is missing"):
            Question.parse(sort=each_field([text]))
    with pytest.raises(BadQuestion, match="at most 8 fields"):
        Question.parse(group_by=each_field([",".join(["state"] * 9)]))


def test_a_parsed_name_with_a_comma_stays_whole():
    (key,) = Question.parse(sort=["-hparams.a,b"]).sort
    assert (key.field.name, key.descending) == ("a,b", True)


def test_a_long_text_is_shown_around_the_place():
    before = " and ".join("hparams.lr < 0.1" for _ in range(20))
    with pytest.raises(BadQuestion) as caught:
        parse(f"{before} and stat and {before}")
    shown, carets = caught.value.picture.split("\n")
    assert shown[0] == shown[-1] == "…"
    assert shown[carets.index("^") : len(carets)] == "stat"


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "(" * 500, "not " * 900 + "run", "run and " * 400 + "run", "'" * 3999, "-" * 3999],
)
def test_hostile_texts_are_refused_or_read_without_harm(text):
    with suppress(BadQuestion):
        unparse(parse(text))


def test_depth_and_length_are_bounded():
    parse("(" * MAX_DEPTH + "run" + ")" * MAX_DEPTH)
    with pytest.raises(BadQuestion, match=f"nested at most {MAX_DEPTH} deep"):
        parse("(" * (MAX_DEPTH + 1) + "run" + ")" * (MAX_DEPTH + 1))
    with pytest.raises(BadQuestion, match="at most 4,000 characters"):
        parse("run" + " " * MAX_LENGTH)
    with pytest.raises(BadQuestion, match="at most 100 conditions"):
        parse(" or ".join(["run"] * 101))
    with pytest.raises(BadQuestion, match="at most 10 patterns"):
        parse(" or ".join(["run ~ 'a'"] * 11))
    with pytest.raises(BadQuestion, match="sorted by at most 8 fields"):
        Question.parse(sort=["run"] * 9)
    with pytest.raises(BadQuestion, match="limit must be a number from 1"):
        Question.parse(limit=0)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("state", Field("state")),
        ("hparams.lr", Field("lr", "hparams")),
        ("hparams.learning rate (start)", Field("learning rate (start)", "hparams")),
        ("metrics.eval/acc", Field("eval/acc", "metrics", "last")),
        ("metrics.a b.max", Field("a b", "metrics", "max")),
        ('metrics["a,b"].at(3)', Field("a,b", "metrics", "at", 3)),
        ("metrics.a.at(3)", Field("a", "metrics", "at", 3)),
    ],
)
def test_fields_of_columns(text, field):
    assert parse_field(text) == field
    assert parse_field(str(field)) == field
    assert parse_sort(f"-{text}") == SortKey(field, descending=True)


def test_commas_in_quotes_do_not_separate_fields():
    text = 'run, metrics["a,b"].max,, hparams.it\'s,state'
    assert split_fields(text) == ["run", 'metrics["a,b"].max', "hparams.it's", "state"]


def test_names_that_no_run_has_get_the_nearest_one():
    known = {"hparams": ["lr", "depth"], "metrics": ["eval/acc"], "tags": []}
    Question.parse("hparams.lr < 1 and metrics['eval/acc'].max > 0").check_names(known)
    with pytest.raises(BadQuestion) as caught:
        Question.parse("run and metrics['eval/ac'].max > 0").check_names(known)
    assert str(caught.value) == "no run has a metric 'eval/ac'. Did you mean 'eval/acc'?"
    assert caught.value.picture.endswith("\n        ^^^^^^^^^^^^^^^^^^^^^^")
    with pytest.raises(BadQuestion, match=r"'x'\. The hyperparameters are depth, lr\."):
        Question.parse(sort=["-hparams.x"]).check_names(known)
    with pytest.raises(BadQuestion, match="No run has any tag"):
        Question.parse(group_by=["tags.x"]).check_names(known)


names = st.text(min_size=1, max_size=6) | st.sampled_from(["lr", "a.b", "x/y", "max", "a.max"])
fields = st.one_of(
    st.sampled_from(["run", "name", "experiment", "job", "exit_code"]).map(Field),
    st.builds(Field, names, st.sampled_from(["hparams", "tags"])),
    st.builds(Field, names, st.just("metrics"), st.sampled_from(["last", "max", "count"])),
    st.builds(Field, names, st.just("metrics"), st.just("at"), st.integers(-9, 9)),
)
literals = st.one_of(
    st.text(max_size=8),
    st.booleans(),
    st.integers(-(10**29), 10**29),
    st.floats(allow_nan=False, allow_infinity=False),
).map(Literal)
leaves = st.one_of(
    st.builds(Compare, fields, st.sampled_from(["==", "!=", "<", "<=", ">"]), literals | fields),
    st.builds(OneOf, fields, st.lists(literals, max_size=3).map(tuple)),
    st.builds(Contains, st.just(Field("tags")), st.text(max_size=5)),
    st.builds(Missing, fields),
    st.builds(Truth, fields),
)  # fmt: skip


def _flat(kind):
    def build(nodes):
        flat = [one for node in nodes for one in (node.nodes if isinstance(node, kind) else [node])]
        return kind(tuple(flat))

    return build


trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(_flat(And)),
        st.lists(inner, min_size=2, max_size=3).map(_flat(Or)),
        st.builds(Not, inner),
    ),
    max_leaves=8,
)


@given(trees)
def test_what_is_written_reads_the_same(node):
    text = unparse(node)
    if len(text) <= MAX_LENGTH:
        assert parse(text) == node


@given(st.text(max_size=60) | st.lists(
    st.sampled_from(["hparams", ".", "[", "]", "'a'", '"', "(", ")", "and", "not", "in", "==",
                     "<", "~", "-", "1", "1e9", "state", "tags", "metrics.a", ".at", ",", " "]),
    max_size=20,
).map(" ".join))  # fmt: skip
@example("metrics.")
@example("1.")
@example("hparams.a.")
@example("'\\")
def test_any_text_is_read_or_refused(text):
    with suppress(BadQuestion):
        node = parse(text)
        assert parse(unparse(node)) == node


@given(st.text(max_size=30))
def test_any_field_is_read_or_refused(text):
    for one in (text, f"hparams.{text}", f"metrics.{text}", f"-tags.{text}"):
        with suppress(BadQuestion):
            key = parse_sort(one)
            assert parse_sort(str(key)) == key
