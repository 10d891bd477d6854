"""What sta assumes of libraries' private parts. Each test names one: a release that fails it needs
a look at the place that is named with it."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from backbones import BACKBONES, Backbone
from sta.backbones import find, hooks
from sta.backbones.vit_hooks import ForwardState
from sta.core.tracing import is_fake

COLUMNAR = [b for b in BACKBONES if b.name in ("videomae", "vjepa2", "vivit")]


def test_tensors_of_an_export_are_fake_tensors() -> None:
    """torch._subclasses.fake_tensor.FakeTensor, in core/tracing.py."""
    found = []

    class Notes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(is_fake(x))
            return x + 1

    x = torch.zeros(2)
    torch.export.export(Notes(), (x,), strict=False)
    assert found
    assert all(found)
    assert is_fake(x.to("meta"))
    assert not is_fake(x)


def test_the_mark_of_a_constant_result() -> None:
    """What torch.compiler.assume_constant_result sets, in backbones/hooks.py."""

    def function() -> bool:
        return True

    marked = torch.compiler.assume_constant_result(function)
    assert vars(marked) == {"_dynamo_marked_constant": True}
    assert vars(hooks._traced_by_hand) == vars(marked)


def test_where_modules_keep_their_hooks() -> None:
    """The dictionaries that backbones/hooks.py takes hooks out of."""
    module = nn.Linear(2, 2)
    before = module.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    after = module.register_forward_hook(lambda *_: None, with_kwargs=True, always_call=True)
    assert list(module._forward_pre_hooks) == list(module._forward_pre_hooks_with_kwargs)
    assert list(module._forward_pre_hooks) == [before.id]
    assert list(module._forward_hooks) == list(module._forward_hooks_with_kwargs) == [after.id]
    assert list(module._forward_hooks_always_called) == [after.id]


@torch.no_grad()
@pytest.mark.parametrize("backbone", COLUMNAR, ids=str)
def test_a_block_with_a_step_that_drops_nothing_is_the_stock_block(backbone: Backbone) -> None:
    """The forwards of transformers' blocks, which backbones/*.py repeat with a step inside."""

    class NoStep:
        def attention_bias(self, state: ForwardState) -> None:
            return None

        def between(self, block, normed, x, state):
            return x

    adapter = find(backbone.make())
    block = adapter.blocks[0]
    tokens = backbone.grids[0].frames * backbone.grids[0].tokens
    x = torch.randn(2, tokens + adapter.prefix, 32)
    given = {adapter.positions_argument: None} if adapter.positions_argument else {}
    stock = block(x, **given)
    block.__class__ = adapter.block_with_step
    block.hook = NoStep()
    ours = block(x, **given, state=ForwardState())
    for one, other in zip(_tensors(ours), _tensors(stock), strict=True):
        assert torch.equal(one, other)


def _tensors(output: object) -> list[torch.Tensor]:
    parts = output if isinstance(output, tuple) else (output,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def test_files_of_the_hub_that_are_missing_are_no_error() -> None:
    """Private arguments of transformers' cached_file, in zoo/folders.py: others are ignored."""
    from transformers.utils.hub import cached_files

    reasons = ("gated_repo", "missing_entries", "connection_errors")
    names = {f"_raise_exceptions_for_{reason}" for reason in reasons}
    assert names <= inspect.signature(cached_files).parameters.keys()


def test_models_are_built_without_drawing_weights() -> None:
    """transformers.initialization.no_init_weights, in zoo/folders.py."""
    from transformers import VideoMAEConfig, VideoMAEModel
    from transformers.initialization import no_init_weights

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    torch.manual_seed(0)
    with no_init_weights():
        VideoMAEModel(VideoMAEConfig(**small, intermediate_size=16))
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))


def test_ray_data_can_be_kept_quiet() -> None:
    """Fields of ray.data.DataContext, in inference/ray_engine.py."""
    data = pytest.importorskip("ray.data")
    context = data.DataContext.get_current()
    assert hasattr(context, "enable_progress_bars")
    assert hasattr(context, "print_on_execution_start")


def test_gradio_checks_files_of_apps_that_were_launched() -> None:
    """gradio.Blocks.has_launched, in ui/app.py; test_ui_access.py tries it."""
    gradio = pytest.importorskip("gradio")
    assert gradio.Blocks().has_launched is False
