"""Post-training quantization of an OpenVINO model: the blocks in int8, the choice of tokens not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sta.runtime.extras import require
from sta.runtime.graph import LOGITS

_SORT, _PRODUCT, _INPUT, _SHAPE = "TopK", "MatMul", "Parameter", "ShapeOf"
#: Where the walk up from a sort ends: layer norms before the keys, and absolute values before the
#: semantic score.
_NORM, _ENDS = "MVN", ("MVN", "Abs")


def quantize(model: Any, calibration: Sequence[Tensor]) -> Any:
    """A model whose linear layers compute in int8, with ranges measured on real clips."""
    if not calibration:
        raise ValueError("int8 needs real clips to take its ranges from: give some as calibration")
    nncf = require("nncf", "int8")
    nncf.set_log_level(logging.ERROR)
    batches = [clip.detach().contiguous().numpy() for clip in calibration]
    return nncf.quantize(
        model,
        nncf.Dataset(batches),
        preset=nncf.QuantizationPreset.MIXED,
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
        ignored_scope=nncf.IgnoredScope(names=scoring_products(model), validate=False),
    )


def scoring_products(model: Any) -> list[str]:
    """Names of the products that tokens are chosen by, which stay in float32.

    They are few and small, and a choice changed by rounding is another input to everything after
    it. Found by the names of operators, upwards from every sort to the layer norms before the keys
    and the absolute values before the semantic score; refused where these are called otherwise.
    """
    found: set[str] = set()
    visited: set[str] = set()
    ends: set[str] = set()
    sorts = [op for op in model.get_ops() if op.get_type_name() == _SORT]
    if not sorts and _chosen_by_pixels(model):
        raise _unknown(f"no {_SORT} before the kept tokens")
    nodes = list(sorts)
    while nodes:
        node = nodes.pop()
        name, kind = node.get_friendly_name(), node.get_type_name()
        if name in visited or kind == _SHAPE:
            continue
        visited.add(name)
        if kind in (*_ENDS, _INPUT):
            ends.add(kind)
            continue
        if kind == _PRODUCT:
            found.add(name)
        nodes += [value.get_node() for value in node.input_values()]
    if _NORM in ends and not found:
        raise _unknown(f"no {_PRODUCT} between the sorts and the layer norms before them")
    if _INPUT in ends and found:
        raise _unknown(f"no {_NORM} or Abs between the scores and the pixels")
    return sorted(found)


def _chosen_by_pixels(model: Any) -> bool:
    """Whether any output but the logits depends on the input."""
    visited: set[str] = set()
    nodes = [output.get_node() for output in model.outputs if LOGITS not in output.get_names()]
    while nodes:
        node = nodes.pop()
        if node.get_friendly_name() in visited or node.get_type_name() == _SHAPE:
            continue
        visited.add(node.get_friendly_name())
        if node.get_type_name() == _INPUT:
            return True
        nodes += [value.get_node() for value in node.input_values()]
    return False


def _unknown(what: str) -> RuntimeError:
    return RuntimeError(
        f"the products that tokens are chosen by cannot be found in the OpenVINO graph: {what}. "
        f"Quantizing them would change which tokens are kept; use float32 or bfloat16, or a "
        f"release of openvino that sta is tested with"
    )
