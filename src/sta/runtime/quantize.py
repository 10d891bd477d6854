"""Post-training quantization of an OpenVINO model: the blocks in int8, the choice of tokens not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sta.runtime.extras import require


def quantize(model: Any, calibration: Sequence[Tensor]) -> Any:
    """A model whose linear layers compute in int8, with ranges seen on real clips.

    Args:
        model: From `with_openvino.convert`.
        calibration: Clips in the model's shape.
    """
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
        ignored_scope=nncf.IgnoredScope(names=choosing(model), validate=False),
    )


def choosing(model: Any) -> list[str]:
    """Names of the products that tokens are chosen by.

    They are few and small, and a choice that rounding has changed is a change of the input to all
    that follows. Found upwards from every sort, as far as the layer norm behind the keys and the
    absolute values behind the semantic score.
    """
    found: set[str] = set()
    seen: set[str] = set()
    nodes = [op for op in model.get_ops() if op.get_type_name() == "TopK"]
    while nodes:
        node = nodes.pop()
        name = node.get_friendly_name()
        if name in seen or node.get_type_name() in ("MVN", "Abs", "Parameter"):
            continue
        seen.add(name)
        if node.get_type_name() == "MatMul":
            found.add(name)
        nodes += [value.get_node() for value in node.input_values()]
    return sorted(found)
