"""`sta bench`: taking turns, what a forward multiplies, rows that can be trusted."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from importlib import import_module
from inspect import signature

import pytest
import torch
from typer.testing import CliRunner

import sta
from backbones import BACKBONES
from inference_runs import environment
from sta.backbones import find
from sta.cli import app, main
from sta.measure import peak, products
from sta.measure.bench import Benchmark, BenchResult, BenchRow, bench_clips
from sta.measure.chain import chain_rows, share_of_forward, step
from sta.measure.contenders import Contender, Method, Source, choose_methods, one_run, pairs
from sta.measure.memory import keep_memory, peak_megabytes
from sta.measure.products import Attention, Product, limit, record, repeats, runs
from sta.measure.timing import Timing, interleave, speedup
from sta.runtime import with_openvino
from sta.runtime.extras import available

KEYS = {
    *("model", "name", "method", "r", "settings", "runtime", "precision", "batch_size"),
    *("gflops", "seconds", "spread", "p50_ms", "p95_ms", "clips_per_s", "speedup"),
    *("speedup_over_torch", "gemm_seconds", "gemm_share", "peak_share", "memory_mb"),
}


def test_contenders_take_turns_and_warm_up_is_not_counted():
    calls: list[str] = []
    contenders = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = interleave(contenders, rounds=3, warmup=1, after_round=lambda: calls.append("|"))
    assert "".join(calls) == "abc|" * 4
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3, 3]


def test_quantiles_and_ratio():
    timing = Timing((4.0, 1.0, 2.0, 3.0, 5.0))
    assert timing.median == 3.0
    assert timing.quantile(0.95) == 5.0
    assert timing.quantile(0.0) == 1.0
    slow = Timing(tuple(2 * s for s in timing.seconds))
    assert speedup({"slow": slow, "fast": timing}, "fast", "slow") == pytest.approx(2.0)


def test_products_of_a_vit_are_those_of_its_layers():
    backbone = BACKBONES[0]  # 4 blocks, 2 heads of 16, 4 x 16 tokens of 8 x 8 x 2 pixels
    found = record(lambda: backbone.make()(backbone.clip(1)))
    assert found == Counter(
        {
            Product(1, 64, 3 * 2 * 8 * 8, 32, True): 1,  # patches
            Product(1, 64, 32, 3 * 32, True): 4,  # queries, keys and values, of the same tokens
            Product(1, 64, 32, 32, True): 4,  # output
            Attention(2, 64, 64, 16): 4,
            Product(1, 64, 32, 64, True): 4,  # MLP
            Product(1, 64, 64, 32, True): 4,
            Product(1, 1, 32, 5, True): 1,  # head
        }
    )


def test_products_of_a_pruned_vit_have_the_kept_tokens():
    backbone = BACKBONES[0]
    model = sta.apply(backbone.make(), sta.STAConfig(r=4))  # 16, 12, 10, 9 per frame
    found = record(lambda: model(backbone.clip(3)))
    widening = {
        p.rows: n
        for p, n in found.items()
        if isinstance(p, Product) and (p.inner, p.columns) == (32, 64)
    }
    assert widening == {3 * 4 * kept: 1 for kept in (16, 12, 10, 9)}
    queries = {o.queries for o in found if isinstance(o, Attention) and o.batch == 3 * 2}
    assert queries == {4 * kept for kept in (16, 12, 10, 9)}


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_products_are_all_gflops_but_the_norms(backbone):
    model = sta.apply(backbone.make(), backbone.config)
    clip = backbone.clip(1)
    macs = sum(p.macs * n for p, n in record(lambda: model(clip)).items()) / 1e9
    assert 0.97 < macs / sta.gflops(model, tuple(clip.shape)) < 1.0


def test_limit_counts_every_product_as_often_as_it_occurs():
    small, large = Product(1, 8, 8, 8, True), Product(2, 1600, 1600, 1600, False)
    assert repeats(small) > 1
    assert repeats(large) == 1
    timings = {
        (small, "one"): Timing((0.5,)),
        (large, "one"): Timing((3.0, 3.0, 9.0)),
        (large, "another"): Timing((2.0, 4.0, 4.0)),  # the fastest run of any library counts
    }
    expected = 4 * 0.5 / repeats(small) + 5 * 2.0
    assert limit({small: 4, large: 5}, timings) == pytest.approx(expected)


def test_every_product_of_a_forward_is_tried_in_every_library():
    """Else a runtime could be faster than the limit that it is measured by."""
    pytest.importorskip("openvino")
    backbone = BACKBONES[0]
    model, clip = sta.apply(backbone.make(), backbone.config), backbone.clip(1)
    found = record(lambda: model(clip))
    made = runs(found, threads=1)
    for operation in found:
        libraries = {library for one, library in made if one == operation}
        assert {name.partition(".")[0] for name in libraries} == {"torch", "openvino"}
        for library in libraries:
            made[operation, library]()


@pytest.mark.skipif(available()["openvino"] is not None, reason="OpenVINO is not installed")
def test_only_the_largest_of_many_products_are_compiled(monkeypatch):
    """Each compiled one takes memory, and pruned windows make thousands."""
    monkeypatch.setattr(products, "_MOST_COMPILED", 3)
    many = [Product(1, rows, 4, 4, False) for rows in range(1, 9)]
    made = runs(many, "float32", threads=1)
    assert {one for one, library in made if library == "torch.mm"} == set(many)
    assert {one for one, library in made if library == "openvino"} == set(many[-3:])


def test_the_nominal_peak_is_the_data_sheets(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("cpu MHz\t\t: 2500.000\nflags\t\t: sse fma avx2 avx512f avx512_bf16\n" * 2)
    monkeypatch.setattr(peak, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(peak, "_MAX_FREQUENCY", tmp_path / "none")
    assert peak.nominal_gflops("float32", 2) == 2 * 32 * 2.5
    assert peak.nominal_gflops("bfloat16", 1) == 64 * 2.5
    (tmp_path / "none").write_text("4000000\n")  # kHz
    assert peak.nominal_gflops("float32", 1) == 32 * 4.0
    cpuinfo.write_text("Features: asimd\n")
    assert peak.nominal_gflops("float32", 1) is None


def test_products_run_alone_in_shared_buffers():
    pytest.importorskip("openvino")
    linear, other, fused = (
        Product(1, 3, 4, 5, True),
        Product(2, 3, 4, 5, False),
        Attention(2, 6, 7, 8),
    )
    made = runs([linear, other, linear, fused])
    assert set(made) == {
        *((linear, name) for name in ("torch.mm", "torch.linear", "openvino")),
        *((other, name) for name in ("torch.mm", "openvino")),
        *((fused, name) for name in ("torch.bmm", "torch.sdpa", "openvino", "openvino.sdpa")),
    }
    for run in made.values():
        run()
    made = runs([linear, other, fused], "int8")  # of which some products stay in float32
    assert set(made) == {
        *((linear, name) for name in ("torch.mm", "torch.linear", "openvino", "openvino.float32")),
        *((other, name) for name in ("torch.mm", "openvino", "openvino.float32")),
        *((fused, name) for name in ("torch.bmm", "torch.sdpa", "openvino")),
        *((fused, name) for name in ("openvino.float32", "openvino.float32.sdpa")),
    }
    for run in made.values():
        run()


@pytest.mark.parametrize("weights", [True, False])
def test_products_in_int8_are_of_8_bits(weights, monkeypatch):
    pytest.importorskip("openvino")
    models = []
    compile_model = with_openvino._compile
    monkeypatch.setattr(
        with_openvino, "_compile", lambda m, *rest: models.append(m) or compile_model(m, *rest)
    )
    shapes = ((1, 64, 32), (1, 48, 32)) if weights else ((2, 64, 32), (2, 48, 32))
    run = with_openvino.multiplier(*shapes, "int8", transposed=True, weights=weights, times=3)
    assert run is not None
    run()
    hint = {"INFERENCE_PRECISION_HINT": "f32"}  # of the rest, as `_compile` has it
    compiled = with_openvino.core().compile_model(models[0], "CPU", hint)
    infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ordered_ops()]
    kinds = [(i["layerType"].astype(str), i["runtimePrecision"].astype(str)) for i in infos]
    made = [precision for kind, precision in kinds if kind in ("FullyConnected", "MatMul")]
    assert len(made) == 3
    assert set(made) <= {"u8", "i8"}
    assert not any(kind in ("Subgraph", "Reorder", "Convert") for kind, _ in kinds)


def _made_up(seconds: dict[str, tuple[float, ...]]):
    """Times by method, and a second for every product that is timed alone."""

    def fake(contenders, **_):
        return {
            key: Timing(seconds[key.method.method] if isinstance(key, Contender) else (1.0,) * 4)
            for key in contenders
        }

    return fake


def test_rows_follow_from_the_times(folder, opened):
    methods = choose_methods(opened, ["sta", "tome"], [4])
    contenders = [Contender(method) for method in methods]
    clips = bench_clips(None, opened.clip.views, 2)
    times = {"stock": (8.0, 4.0, 4.0, 4.0), "sta": (2.0, 2.0, 2.0, 2.0), "tome": (4.0,) * 4}
    benchmark = Benchmark(
        Source(folder), opened, contenders, clips, memory=False, interleave=_made_up(times)
    )
    stock, ours, tome = (asdict(row) for row in benchmark.rows(2))
    for row in (stock, ours, tome):
        assert set(row) == KEYS
        assert row["batch_size"] == 2
    assert [row["name"] for row in (stock, ours, tome)] == ["stock", "sta r=4", "tome r=4"]
    assert ours["speedup"] == 2.0
    assert stock["speedup"] == 1.0
    assert ours["clips_per_s"] == 1.0
    assert (stock["p50_ms"], stock["p95_ms"]) == (4000, 8000)
    model = sta.apply(sta.load(folder), sta.STAConfig(r=4))
    assert ours["gflops"] == sta.gflops(model, opened.clip.shape())
    clip = opened.clip.pixels(clips)
    alone = sum(n / repeats(o) for o, n in record(lambda: model(clip)).items())
    assert ours["gemm_seconds"] == pytest.approx(alone)
    assert ours["gemm_share"] == pytest.approx(alone / 2.0)


def test_int8_has_a_share_of_the_limit_too(folder, opened):
    pytest.importorskip("nncf")
    contenders = [Contender(Method("stock"), "openvino", p) for p in ("float32", "int8")]
    clips = bench_clips(None, opened.clip.views, 1)
    times = _made_up({"stock": (4.0,) * 4})
    benchmark = Benchmark(Source(folder), opened, contenders, clips, memory=False, interleave=times)
    wide, narrow = benchmark.rows(1)
    assert wide.gemm_seconds == narrow.gemm_seconds  # every product took a second
    assert narrow.gemm_share == pytest.approx(narrow.gemm_seconds / 4.0)


def test_products_of_one_matrix_count_as_one():
    x, y = torch.ones(2, 6, 8)
    weights = [torch.ones(n, 8) for n in (3, 4, 5)]
    linear = torch.nn.functional.linear

    def forward() -> None:
        for weight in weights[:2]:
            linear(x, weight)
        linear(y, weights[2])  # of another
        linear(x, weights[2])  # not beside the others
        x @ x.T.contiguous()  # no weights

    assert record(forward) == Counter(
        {
            Product(1, 6, 8, 7, True): 1,
            Product(1, 6, 8, 5, True): 2,
            Product(1, 6, 8, 6, False): 1,
        }
    )


def test_methods_are_matched_in_gflops(opened):
    shape = opened.clip.shape()
    methods = choose_methods(opened, ["stock", "sta", "tome"], [5], match=True)
    model = sta.load(opened.model.name_or_path)

    def cost(config: sta.Config) -> float:
        return sta.gflops(sta.apply(model, config), shape)

    stock, ours, tome = methods
    assert stock.config is None
    assert ours.config == sta.STAConfig(r=5)
    target = cost(ours.config)
    for near in (tome.r - 1, tome.r + 1):
        gap = abs(cost(sta.ToMeConfig(r=tome.r)) - target)
        assert gap <= abs(cost(sta.ToMeConfig(r=near)) - target)


def test_a_contender_says_what_the_model_says(folder, opened):
    clips = bench_clips(None, opened.clip.views, 1)
    config = sta.STAConfig(r=4)
    with torch.inference_mode():
        expected = sta.apply(sta.load(folder), config)(opened.clip.pixels(clips)).logits
    run = one_run(Source(folder), Contender(Method("sta", config)), clips)
    torch.testing.assert_close(run(), expected)


def test_the_released_program_attends_eagerly(folder):
    tiny = Source(folder, {"num_frames": 8}).open()
    (_, released) = choose_methods(tiny, ["released"], [4])
    clip = tiny.clip.pixels(bench_clips(None, tiny.clip.views, 1))
    from sta.measure.contenders import equip

    assert equip(tiny.model, released).config._attn_implementation == "eager"
    assert tiny.model.config._attn_implementation != "eager"
    assert equip(tiny.model, released)(clip).logits.shape == (1, 6)


def test_precisions_go_with_runtimes():
    assert pairs(["torch"], ["float32", "bfloat16"]) == [
        ("torch", "float32"),
        ("torch", "bfloat16"),
    ]
    with pytest.raises(ValueError, match="int8"):
        pairs(["torch"], ["float32", "int8"])
    with pytest.raises(ValueError, match="tensorrt"):
        pairs(["tensorrt"], ["float32"])


def test_the_chain_is_timed_per_frame(opened):
    def fake(contenders, **_):
        for run in contenders.values():
            run()
        return {key: Timing((0.001 * key[0] * key[1],)) for key in contenders}

    rows = chain_rows(opened, sta.STAConfig(r=4), frames=(2, 5), batch_sizes=(1, 3), time=fake)
    assert [(row["frames"], row["batch_size"]) for row in rows] == [(2, 1), (2, 3), (5, 1), (5, 3)]
    assert [row["ms_per_frame"] for row in rows] == pytest.approx([1.0] * 4)
    clip = opened.clip.pixels(bench_clips(None, opened.clip.views, 1))
    part = share_of_forward(opened, clip, sta.STAConfig(r=4), rounds=2)
    assert part["share"] == pytest.approx(part["steps_ms"] / part["forward_ms"])


def test_the_chain_is_timed_with_the_settings_of_the_model(opened):
    """`prune_step` has the defaults of `STAConfig`, but the model's settings are what counts."""
    assert signature(sta.prune_step).parameters["semantic"].default == sta.STAConfig().semantic
    for config in (sta.STAConfig.paper(4), sta.STAConfig(r=4, score="temporal", temperature=0.1)):
        settings = step(find(opened.model), config, 2, 16, 4, 1, "cpu").keywords
        for name in ("score", "semantic", "first_frame", "temperature", "seed"):
            assert settings[name] == getattr(config, name)
    timed = []

    def fake(contenders, **_):
        timed.extend(run.keywords["order"] for key, run in contenders.items() if key != "forward")
        return {key: Timing((1.0,)) for key in contenders}

    clip = opened.clip.pixels(bench_clips(None, opened.clip.views, 1))
    share_of_forward(opened, clip, sta.STAConfig(r=4), time=fake)
    assert timed == ["F", "B", "F"]


def test_every_attention_kernel_is_read_or_refused():
    """Assumes that PyTorch's attention kernels have "attention" in their names."""
    q = torch.randn(1, 2, 5, 8)
    found = record(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert found == {Attention(2, 5, 5, 8): 1}

    @torch.library.custom_op("sta_tests::other_attention", mutates_args=())
    def other_attention(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with pytest.raises(NotImplementedError, match=r"other_attention.*gemm=False"):
        record(lambda: other_attention(q))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_freed_memory_is_kept():
    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(16 << 20)  # 64 MB, 16,384 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_memory()
    assert min(faults() for _ in range(12)) < 1000  # after a few that find their place


def test_memory_is_measured_in_a_program_that_runs_no_script_again(tmp_path, monkeypatch):
    (tmp_path / "filling.py").write_text(
        "def fill(megabytes):\n    return lambda: bytearray(b'x') * (megabytes << 20)\n"
    )
    script = tmp_path / "script.py"  # without a main guard
    script.write_text(
        "print('run')\n"
        "from sta.measure.memory import peak_megabytes\n"
        "from filling import fill\n"
        "print(peak_megabytes(fill, 64))\n"
    )
    command = [sys.executable, script]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    printed, megabytes = done.stdout.split()
    assert printed == "run", done.stderr
    assert 60 < float(megabytes) < 80
    own = (tmp_path / "filling.py").read_text()  # a function of the script itself
    script.write_text(
        f"{own}if __name__ == '__main__':\n"
        "    from sta.measure.memory import peak_megabytes\n"
        "    print(peak_megabytes(fill, 64))\n"
    )
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert 60 < float(done.stdout) < 80, done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"fill failed.*TypeError"):
        peak_megabytes(import_module("filling").fill, "many")


def test_a_model_of_ones_own_is_measured(folder, opened):
    model = sta.load(folder)
    result = sta.bench(model, methods="sta", r=4, rounds=1, warmup=0, memory=False)
    assert [row.name for row in result.rows] == ["stock", "sta r=4"]
    assert result.rows[1].gflops == sta.gflops(
        sta.apply(sta.load(folder), sta.STAConfig(r=4)), opened.clip.shape()
    )
    clips = bench_clips(None, opened.clip.views, 1)
    with Source(model).for_child() as source, torch.inference_mode():
        run = one_run(source, Contender(Method("stock")), clips)
        torch.testing.assert_close(run(), model(opened.clip.pixels(clips)).logits)
    model.forward = lambda pixels: pixels
    with (
        pytest.raises(ValueError, match=r"cannot be pickled.*memory=False"),
        Source(model).for_child(),
    ):
        pass


def test_the_table_fits_80_columns_and_nothing_is_cut():
    row = BenchRow(
        model="a/model/with/a/long/name",
        name="frame-difference r=196",
        method="frame-difference",
        r=196,
        settings={},
        runtime="torch",
        precision="float32",
        batch_size=4,
        gflops=180.44,
        seconds=11.39,
        spread=0.1144,
        p50_ms=11390.4,
        p95_ms=12390.4,
        clips_per_s=0.3512,
        speedup=1.84,
        speedup_over_torch=10.84,
        gemm_seconds=10.0,
        gemm_share=0.99,
        peak_share=0.52,
        memory_mb=12345.6,
    )
    rows = (row, replace(row, runtime="onnxruntime", precision="bfloat16", gemm_share=None))
    text = str(BenchResult(rows, {"threads": 2}))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for part in ("frame-difference", "onnxruntime", "bfloat16", "11,390", "10.84x", "12,346", "MB"):
        assert part in text
    plain = str(BenchResult((replace(row, gemm_share=None, memory_mb=None),), {"threads": 2}))
    assert "peak" in plain
    assert not any(head in plain for head in ("GEMM", "MB", "vs torch"))


METHODS = {"methods": ["stock", "sta", "random"], "r": [2, 4]}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (METHODS, ["stock", "sta r=2", "random r=2", "sta r=4", "random r=4"]),
        ({"methods": ["paper", "sta"], "r": [2]}, ["stock", "paper r=2", "sta r=2"]),
        ({"config": "mine.json"}, ["stock", "mine.json"]),
    ],
    ids=["methods", "preset", "config"],
)
def test_command_writes_rows(folder, tmp_path, monkeypatch, given, names):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "deep" / "bench.json"
    sta.STAConfig(r=3, schedule="constant").to_file("mine.json")
    words = ["bench", "--model", folder, "--batch-size", "1", "2", "--rounds", "1", "--warmup", "0"]
    for option, values in given.items():
        listed = [values] if isinstance(values, str) else [str(value) for value in values]
        words += [f"--{option.removesuffix('s')}", *listed]
    result = CliRunner().invoke(app, [*words, "--no-memory", "--json", str(file)])
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    assert written["about"]["clips"].startswith("digits")
    assert [(row["batch_size"], row["name"]) for row in written["rows"]] == [
        (batch, name) for batch in (1, 2) for name in names
    ]
    assert all(set(row) == KEYS for row in written["rows"])
    again = sta.bench(
        folder,
        **given,
        batch_sizes=[1, 2],
        rounds=1,
        warmup=0,
        memory=False,
    )
    same = ("model", "name", "method", "r", "settings", "batch_size", "gflops")
    records = json.loads(json.dumps(again.records()))
    for row, other in zip(written["rows"], records, strict=True):
        assert {key: row[key] for key in same} == {key: other[key] for key in same}
    gflops = [row["gflops"] for row in written["rows"] if row["batch_size"] == 1]
    assert gflops[0] > max(gflops[1:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cuda:7"], "cuda:7"),
        (["--method", "magic"], "magic"),
        (["--r", "4", "--precision", "int8"], "int8"),
        (["--r", "400"], "r=400"),
        (["--videos", "nowhere.mp4", "--r", "4"], "nowhere.mp4"),
    ],
)
def test_wrong_usage_ends_with_2(folder, words, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sta", "bench", "--model", folder, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_no_program_is_run_for_the_name_of_the_processor(monkeypatch, tmp_path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast 9000\n")
    monkeypatch.setattr(peak, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(peak.platform, "processor", lambda: pytest.fail("it runs uname"))
    assert peak.processor() == "Fast 9000"
    monkeypatch.setattr(peak.platform, "processor", lambda: "arm")
    cpuinfo.write_text("processor\t: 0\n")
    assert peak.processor() == "arm"
