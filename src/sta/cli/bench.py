"""``sta bench``: time, memory and GFLOPs of methods and runtimes, measured in turn."""

from __future__ import annotations

from typing import Annotated

import typer

from sta.cli import options as cli
from sta.cli.options import MULTI_VALUE, MultiValueCommand
from sta.methods import method_names


class BenchCommand(MultiValueCommand):
    """`sta bench` has no arguments: all that follows a multi-value option is its own."""

    multi_value = {  # noqa: RUF012, a ClassVar of its base
        **MULTI_VALUE,
        "--method": lambda word: not word.startswith("-"),
        "--model": lambda word: not word.startswith("-"),
        "--batch-size": lambda word: word.lstrip("-").isdigit(),
        "--runtime": lambda word: not word.startswith("-"),
        "--precision": lambda word: not word.startswith("-"),
        "--videos": lambda word: not word.startswith("-"),
    }


def bench(
    model: Annotated[
        list[str], typer.Option(help="Zoo name, hub id, folder or checkpoint; several in turn.")
    ] = ["vit-s-k400"],  # noqa: B006, typer copies it
    r: Annotated[
        list[int] | None,
        typer.Option(min=1, help=f"{cli.R_HELP} Default: about a third."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"stock, {', '.join(method_names())}; several are compared.  [default: stock sta]"
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Settings from a file, instead of --method and --r.")
    ] = None,
    match_gflops: cli.MatchGflopsOption = False,
    batch_size: Annotated[
        list[int], typer.Option(min=1, help="Clips per forward; several are measured.")
    ] = [1],  # noqa: B006
    runtime: Annotated[
        list[str], typer.Option(help="torch, compile, onnxruntime, openvino; several are compared.")
    ] = ["torch"],  # noqa: B006
    precision: Annotated[
        list[str], typer.Option(help="float32, float16, bfloat16, int8, where the runtime has it.")
    ] = ["float32"],  # noqa: B006
    threads: cli.ThreadsOption = None,
    device: cli.DeviceOption = "auto",
    rounds: cli.RoundsOption = 9,
    warmup: Annotated[int, typer.Option(min=0, help="Rounds before that do not count.")] = 2,
    videos: Annotated[
        list[str] | None,
        typer.Option(metavar="VIDEO...", help="Cut clips from them. Default: drawn digits."),
    ] = None,
    memory: Annotated[bool, typer.Option(help="Measure peak memory as well.")] = True,
    gemm: Annotated[bool, typer.Option(help="Measure the matrix products alone as well.")] = True,
    chain: Annotated[
        bool, typer.Option("--chain", help="Time the choice of tokens alone, at 8 to 64 frames.")
    ] = False,
    json_file: cli.JsonOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Time methods and runtimes in turn, and how much of the machine's speed each one reaches.

    All contenders of a model and batch size take turns, after a warm-up, so that a slow spell of
    the machine hits all of them; medians count. "GEMM" is the time that the forward's matrix
    products take alone, each in the fastest library here, as a share of the forward's: what is left
    of 100 % is not matrix products. "peak" is the share of the processor's nominal peak.
    """
    options = cli.arguments(
        locals(),
        *("model", "chain", "json_file"),
        method="methods",
        batch_size="batch_sizes",
        runtime="runtimes",
        precision="precisions",
    )
    from sta.measure.bench import BenchResult
    from sta.measure.bench import bench as measure
    from sta.measure.chain import ChainResult, bench_chain

    if config is not None and (r or method not in (None, ["stock"])):
        raise ValueError(f"--config {config} has a method and its r: leave --method and --r out")
    cli.check_files(json_file)
    if chain:
        shared = ("rounds", "threads", "device", "overrides", "random_weights")
        options = {name: options[name] for name in shared}
        options |= {"r": r[0] if r else None, "batch_size": max(batch_size)}
    results: list[BenchResult | ChainResult] = []
    for name in model:
        results.append(bench_chain(name, **options) if chain else measure(name, **options))
        cli.print_result(results[-1])
    rows = [row for result in results for row in result.records()]
    cli.write_json(json_file, {"about": results[0].about, "rows": rows})
