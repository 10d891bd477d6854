"""One self-contained HTML page: sliders over time and step, scores, predictions, cost."""

from __future__ import annotations

import base64
import html
import io
import json
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sta.explain import captions
from sta.explain.animation import FPS
from sta.explain.draw import Map, limits
from sta.explain.inspect import Inspection, MethodResult, StepResult
from sta.explain.style import COLOUR_MAPS, colour_table

_LABELS = {
    "semantic": "F",
    "accumulation": "A",
    "score": "Score",
}
_NO_TOKEN = 65535  # as in page.js


def page(inspection: Inspection, fps: int = FPS) -> str:
    """The page. It needs nothing else: pictures, style and program are inside."""
    data = {
        "width": inspection.frames.shape[2],
        "height": inspection.frames.shape[1],
        "fps": fps,
        "note": "Each stage fills its grid again." if captions.staged(inspection) else "",
        "explanations": {
            "semantic": captions.semantic_score(inspection),
            "score": captions.combined_score(inspection),
        },
        "frames": [_picture(frame) for frame in inspection.frames],
        "tables": {name: _text(colour_table(name)) for name in dict.fromkeys(COLOUR_MAPS.values())},
        "stock": {**_summary(inspection.stock), "facts": _stock_facts(inspection)},
        "methods": [
            {
                **_summary(method),
                "gone": captions.gone(method),
                "facts": _facts(inspection, method),
                "steps": [_step(inspection, step) for step in method.steps],
            }
            for method in inspection.methods
        ],
    }
    # "<" cannot occur inside a script element as text: "</script>" would end it.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    parts = resources.files("sta.explain")
    return Template((parts / "page.html").read_text("utf-8")).substitute(
        title=html.escape(captions.headline(inspection)),
        style=(parts / "page.css").read_text("utf-8"),
        script=(parts / "page.js").read_text("utf-8"),
        gone=captions.gone(*inspection.methods),
        data=text,
    )


def save(inspection: Inspection, path: str | Path, fps: int = FPS) -> Path:
    """Write the page."""
    path = Path(path)
    path.write_text(page(inspection, fps), encoding="utf-8")
    return path


def _step(inspection: Inspection, step: StepResult) -> dict[str, Any]:
    return {
        "depth": 0 if step.after == "input" else int(step.after.split()[-1]),
        "position": captions.position(step),
        "text": f"{captions.kept_per_frame(step)} kept {captions.position(step)}",
        "grid": step.kept.shape,
        "patch": inspection.patch(step),
        "kept": _text(step.kept.astype(np.uint8)),
        "maps": {name: _map(name, step.scores[name]) for name in _LABELS if name in step.scores},
    }


def _map(name: str, values: Map) -> dict[str, Any]:
    """A map's numbers as 16 bits each."""
    low, high = limits(values)
    level = (np.nan_to_num(values) - low) / (high - low if high > low else 1.0)
    coded = np.round(level * (_NO_TOKEN - 1)).astype("<u2")
    coded[np.isnan(values)] = _NO_TOKEN
    return {
        "label": _LABELS[name],
        "table": COLOUR_MAPS[name],
        "low": low,
        "high": high,
        "values": _text(coded),
    }


def _summary(method: MethodResult) -> dict[str, Any]:
    best = [(label, share, captions.percent(share)) for label, share in method.predictions]
    return {"title": method.title, "predictions": best}


def _stock_facts(inspection: Inspection) -> list[tuple[str, str, str]]:
    stock = inspection.stock
    tokens = next((m.steps[-1].kept.size for m in inspection.methods if m.steps), 0)
    facts = [
        ("Tokens left", f"{tokens:,}" if tokens else "all", ""),
        ("GFLOPs", captions.amount(stock.gflops), ""),
    ]
    if stock.seconds is not None:
        facts.append(("Time", captions.duration(stock.seconds), ""))
    return facts


def _facts(inspection: Inspection, method: MethodResult) -> list[tuple[str, str, str]]:
    stock = inspection.stock
    left, total = method.steps[-1].tokens, method.steps[-1].kept.size
    facts = [
        ("Tokens left", f"{left:,} of {total:,}", captions.less(left / total)),
        ("GFLOPs", captions.amount(method.gflops), captions.less(method.gflops / stock.gflops)),
    ]
    if stock.seconds is not None and method.seconds is not None:
        gain = captions.faster(stock.seconds / method.seconds)
        facts.append(("Time", captions.duration(method.seconds), gain))
    return facts


def _picture(frame: NDArray[np.uint8]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG", quality=85, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
