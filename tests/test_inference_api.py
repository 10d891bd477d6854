"""`sta.predict` and `sta.evaluate`: the commands' figures, from Python."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import torch

import sta
from inference_runs import make_videos, run
from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.inference.rows import read_rows
from sta.inference.run import Run
from sta.progress import Progress
from sta.video.digits import DigitActions, write_videos


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Six digit actions as files, with their list."""
    folder = tmp_path_factory.mktemp("digits")
    for _ in write_videos(DigitActions("test", size=6), folder):
        pass
    return folder


def test_predict_is_the_command(tmp_path, digits):
    out = tmp_path / "rows.jsonl"
    done = run("predict", digits, "--model", "vit-digits", "--r", 24, "--out", out)
    assert done.exit_code == 0, done.output
    result = sta.predict(digits, model="vit-digits", r=24, progress=False)
    expected = [
        {name: value for name, value in row.items() if name != "origin"}
        for row in read_rows(str(out))
    ]
    assert result.records() == list(result) == expected
    assert (len(result), result.total, result.failures) == (6, 6, [])
    again = sta.predict(digits, r=24, out=tmp_path / "own.parquet", progress=False)
    assert again.records() == expected
    assert list(result.to_pandas()["path"]) == [row["path"] for row in expected]
    label = expected[0]["predictions"][0]["label"]
    assert label.split()[0] in str(result)


def test_evaluate_is_the_command(tmp_path, digits):
    table = tmp_path / "table.json"
    words = ("--method", "sta", "random", "--r", 0, 24, "--json", table)
    done = run("eval", digits / "test.txt", "--model", "vit-digits", *words)
    assert done.exit_code == 0, done.output
    steps: list[int] = []
    result = sta.evaluate(
        digits / "test.txt",
        model="vit-digits",
        methods=["sta", "random"],
        r=[0, 24],
        progress=lambda now: steps.append(now.done),
    )

    def figures(rows):
        return [{n: v for n, v in row.items() if n != "clips_per_s"} for row in rows]

    assert figures(result) == figures(json.loads(table.read_text()))
    assert steps == list(range(7))
    assert list(result.to_pandas()["r"]) == [0, 24, 24]
    assert max(len(line) for line in str(result).splitlines()) <= 80


@pytest.mark.parametrize(
    ("methods", "names"),
    [
        (["rlt"], ["unpruned", "rlt"]),
        (["dense"], ["unpruned", "dense"]),
        (["rlt", "tome"], ["tome", "rlt"]),  # tome with r=0
    ],
)
def test_r_0_is_the_model_as_it_is_whatever_the_methods(methods, names):
    table = sta.evaluate("digits", methods=methods, r=0, clips=4, progress=False).table
    assert [(row["method"], row["r"]) for row in table] == [(name, 0) for name in names]
    assert table[0]["agreement"] == 1.0
    assert (table[0]["kl"], table[0]["difference"]) == (0.0, None)
    assert None not in (table[1]["agreement"], table[1]["kl"], table[1]["difference"])


def test_the_published_score_has_a_name_in_every_command(tmp_path):
    table, out = tmp_path / "table.json", tmp_path / "strip.png"
    words = ("--method", "sta", "paper", "--r", 0, 24, "--clips", 4, "--json", table)
    done = run("eval", "digits", *words)
    assert done.exit_code == 0, done.output
    names = [(row["method"], row["r"]) for row in json.loads(table.read_text())]
    assert names == [("sta", 0), ("sta", 24), ("paper", 24)]
    words = ("--method", "paper", "--compare", "sta", "--r", 24, "--rounds", 0, "--out", out)
    done = run("show", "digits:5", *words)
    assert done.exit_code == 0, done.output


def test_methods_that_a_model_does_not_take_are_left_out(tmp_path, refused):
    table = tmp_path / "table.json"
    words = ("eval", "digits", "--model", "swin-digits", "--clips", 2, "--r", 0, 4)
    done = run(*words, "--method", "tome", "sta", "random", "--json", table)
    assert done.exit_code == 1, done.output
    assert "left out: tome: " in done.output
    rows = [(row["method"], row["r"]) for row in json.loads(table.read_text())]
    assert rows == [("sta", 0), ("sta", 4), ("random", 4)]
    methods = ["sta", "tome", "vid-tldr"]
    result = sta.evaluate("digits", "swin-digits", methods=methods, r=4, clips=2, progress=False)
    assert [line.split(":")[0] for line in result.left_out] == ["tome", "vid-tldr"]
    assert [row["method"] for row in result] == ["sta"]
    assert str(result).count("left out: ") == 2
    message = refused(*words, "--method", "tome", "vid-tldr")
    assert "swin-digits takes none of these methods: tome: " in message
    assert "vid-tldr: " in message


def test_a_model_is_taken_as_it_is_and_left_so(folder, tmp_path):
    videos = make_videos(tmp_path / "v", 3)
    net = sta.load(folder)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    by_name = sta.predict(videos, folder, r=4, progress=False)
    for model in (net, load_video_model(folder)):
        result = sta.predict(videos, model, config=sta.STAConfig(r=4), progress=False)
        assert result.records() == by_name.records()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    pixels = torch.randn(1, 4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(net(pixels).logits, sta.load(folder)(pixels).logits)
    with pytest.raises(ValueError, match=r"has a method applied already.*sta\.remove"):
        sta.predict(videos, sta.apply(net, sta.STAConfig(r=4)), progress=False)


def test_settings_come_from_one_place(folder, tmp_path):
    videos = make_videos(tmp_path / "v", 1)
    sta.RandomConfig(r=3).to_file(tmp_path / "random.json")
    for config in (tmp_path / "random.json", sta.RandomConfig(r=3)):
        with pytest.raises(ValueError, match="leave method and r out"):
            sta.predict(videos, folder, config=config, r=3)
        with pytest.raises(ValueError, match="leave method and r out"):
            sta.predict(videos, folder, config=config, method="sta")
        with pytest.raises(ValueError, match="leave method and r out"):
            sta.evaluate(videos / "list.txt", folder, config=config, methods="sta")
        rows = sta.evaluate(videos / "list.txt", folder, config=config, progress=False)
        assert [(row["method"], row["r"]) for row in rows] == [("sta", 0), ("random", 3)]


def test_an_error_names_the_argument_in_python_and_the_option_on_the_command_line(
    folder, tmp_path, refused
):
    videos, out = make_videos(tmp_path / "v", 1), tmp_path / "rows.jsonl"
    out.write_text('{"path": "a.mp4", "predictions": [], "error": null}\n')
    with pytest.raises(FileExistsError, match=r"resume=True goes on .*, overwrite=True starts"):
        sta.predict(videos, folder, out=out)
    said = refused("predict", videos, "--model", folder, "--out", out)
    assert "--resume goes on with them, --overwrite starts anew" in said


def test_no_function_speaks_of_options():
    """But where it names a whole command, such as `sta train --classes`."""
    for file in Path(sta.__file__).parent.rglob("*.py"):
        if {"cli", "ui"} & set(file.parts):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise):
                text = ast.unparse(node)
                if re.search(r"(?<!-)--[a-z{]", text):
                    assert re.search("sta train|sta tune|ray start", text), f"{file.name}: {text}"


def test_parts_of_a_list_make_the_whole(folder, tmp_path):
    videos = make_videos(tmp_path / "v", 7)
    whole = sta.predict(videos, folder, progress=False).records()
    parts = [sta.predict(videos, folder, shard=f"{k}/3", progress=False) for k in (1, 2, 3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    together = sorted((row for part in parts for row in part), key=lambda row: row["path"])
    for one, other in zip(whole, together, strict=True):
        assert [p["label"] for p in one["predictions"]] == [
            p["label"] for p in other["predictions"]
        ]
    for wrong in ("0/3", "4/3", "3", "a/b", "1/0"):
        with pytest.raises(ValueError, match=f'shard="{wrong}": .*3/8'):
            sta.predict(videos, folder, shard=wrong)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_logits_are_the_mean_of_the_views(folder, tmp_path, ending):
    from sta.video import ViewSpec, read_views

    videos = make_videos(tmp_path / "v", 1)
    out = tmp_path / f"rows.{ending}"
    [row] = sta.predict(videos, folder, logits=True, views="2x1", out=out, progress=False)
    spec = ViewSpec(frames=4, stride=4, size=32, temporal=2, spatial=1)
    pixels = load_video_model(folder).clip.pixels(read_views(str(videos / "000.mp4"), spec).clips())
    with torch.no_grad():
        logits = sta.load(folder)(pixels).logits
    torch.testing.assert_close(torch.tensor(row["logits"]), logits.mean(0), atol=1e-4, rtol=1e-4)
    scores = [one["score"] for one in row["predictions"]]
    torch.testing.assert_close(
        torch.tensor(scores),
        logits.softmax(-1).mean(0).sort(descending=True)[0][:5],
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 0.0])
def test_a_timeout_is_a_number_of_seconds(folder, seconds):
    with pytest.raises(ValueError, match=r"timeout .*finite number of seconds"):
        sta.predict("a.mp4", folder, timeout=seconds)
    with pytest.raises(ValueError, match=r"timeout .*finite number of seconds"):
        Run(None, None, timeout=seconds)


def test_progress_says_how_far_it_is():
    now = Progress("videos", 3, 10, "6.0 clips/s, 1 failed")
    assert str(now) == "3 of 10 videos, 6.0 clips/s, 1 failed"
    assert str(Progress("tuning", text="candidate 1")) == "tuning, candidate 1"


def test_without_a_terminal_there_is_a_line_now_and_then(folder, tmp_path, monkeypatch, capsys):
    from sta import progress

    videos = make_videos(tmp_path / "v", 3)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    sta.predict(videos, folder)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"{n} of 3 videos" for n in range(4)]


@pytest.mark.parametrize("name", ["vit-digits", "swin-digits"])
def test_a_loaded_model_is_what_its_name_is(name, tmp_path):
    """What a name says of clips and classes goes with the model that `sta.load` gives."""
    by_name = VideoModel.open(name)
    by_object = VideoModel.open(sta.load(name))
    assert by_object.clip == by_name.clip
    assert by_object.class_names == by_name.class_names


def test_half_precision_models_get_pixels_of_their_type():
    model = sta.load("vit-digits").to(torch.bfloat16)
    expected = sta.predict("digits:3", progress=False).records()[0]["predictions"][0]["label"]
    for r in (0, 16):
        rows = sta.predict("digits:3", model=model, r=r, progress=False).records()
        assert rows[0]["predictions"][0]["label"] == expected
