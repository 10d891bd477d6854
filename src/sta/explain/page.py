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

from sta.explain import words
from sta.explain.animation import FPS
from sta.explain.draw import Map, limits
from sta.explain.look import ClipLook, MethodLook, StepLook
from sta.explain.style import COLOUR_MAPS, colour_table

_LABELS = {
    "semantic": "F",
    "accumulation": "A",
    "score": "Score",
}
_NOTHING = 65535  # stands for "no token here", as in page.js


def page(look: ClipLook, fps: int = FPS) -> str:
    """The page. It asks no other place for anything: pictures, style and program are inside."""
    data = {
        "width": look.frames.shape[2],
        "height": look.frames.shape[1],
        "fps": fps,
        "note": "Each stage fills its grid again." if words.staged(look) else "",
        "frames": [_picture(frame) for frame in look.frames],
        "tables": {name: _text(colour_table(name)) for name in dict.fromkeys(COLOUR_MAPS.values())},
        "stock": {**_answers(look.stock), "title": "Unpruned", "facts": _stock_facts(look)},
        "methods": [
            {
                **_answers(method),
                "title": method.title,
                "facts": _facts(look, method),
                "steps": [_step(look, step) for step in method.steps],
            }
            for method in look.methods
        ],
    }
    # "<" cannot occur inside a script element as text: "</script>" would end it.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    parts = resources.files("sta.explain")
    return Template((parts / "page.html").read_text("utf-8")).substitute(
        title=html.escape(words.headline(look)),
        style=(parts / "page.css").read_text("utf-8"),
        script=(parts / "page.js").read_text("utf-8"),
        data=text,
    )


def save(look: ClipLook, path: str | Path, fps: int = FPS) -> Path:
    """Write the page."""
    path = Path(path)
    path.write_text(page(look, fps), encoding="utf-8")
    return path


def _step(look: ClipLook, step: StepLook) -> dict[str, Any]:
    return {
        "depth": 0 if step.after == "input" else int(step.after.split()[-1]),
        "place": words.place(step),
        "text": f"{words.kept_per_frame(step)} kept {words.place(step)}",
        "grid": step.kept.shape,
        "patch": look.patch(step),
        "kept": _text(step.kept.astype(np.uint8)),
        "maps": {name: _map(name, step.scores[name]) for name in _LABELS if name in step.scores},
    }


def _map(name: str, values: Map) -> dict[str, Any]:
    """A map's numbers as 16 bits each."""
    low, high = limits(values)
    level = (np.nan_to_num(values) - low) / (high - low if high > low else 1.0)
    coded = np.round(level * (_NOTHING - 1)).astype("<u2")
    coded[np.isnan(values)] = _NOTHING
    return {
        "label": _LABELS[name],
        "table": COLOUR_MAPS[name],
        "low": low,
        "high": high,
        "values": _text(coded),
    }


def _answers(method: MethodLook) -> dict[str, Any]:
    return {"top": [(label, share, words.percent(share)) for label, share in method.top]}


def _stock_facts(look: ClipLook) -> list[tuple[str, str, str]]:
    stock = look.stock
    tokens = _all_tokens(look)
    return [
        ("Tokens left", f"{tokens:,}" if tokens else "all", ""),
        ("GFLOPs", words.amount(stock.gflops), ""),
        ("Time", words.duration(stock.seconds), ""),
    ]


def _facts(look: ClipLook, method: MethodLook) -> list[tuple[str, str, str]]:
    stock = look.stock
    left, places = method.steps[-1].tokens, method.steps[-1].kept.size
    return [
        ("Tokens left", f"{left:,} of {places:,}", words.less(left / places)),
        ("GFLOPs", words.amount(method.gflops), words.less(method.gflops / stock.gflops)),
        ("Time", words.duration(method.seconds), words.faster(look, method)),
    ]


def _all_tokens(look: ClipLook) -> int:
    return next((m.steps[-1].kept.size for m in look.methods if m.steps), 0)


def _picture(frame: NDArray[np.uint8]) -> str:
    """A frame as a data URL."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG", quality=85, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
