"""Model folders, here or on the hub: ``config.json``, ``model.safetensors``, the preprocessor.

Folders of transformers' models are what its `save_pretrained` writes. A Video Swin of torchvision
is kept in the same files; its config has ``"model_type": "swin3d"`` and the arguments of its class.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import nn

from sta.backbones.patch import add_stored
from sta.backbones.zoo.checkpoints import WrongShape, misfits, read_state, wrong_shapes
from sta.backbones.zoo.positions import quick_positions
from sta.backbones.zoo.preprocessor import FILES, read_json, write_clip
from sta.backbones.zoo.spec import ClipSpec

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SWIN = "swin3d"
#: How transformers calls the classes of the families that can be pruned.
_CLASSES = {"videomae": "VideoMAE", "vivit": "Vivit", "vjepa2": "VJEPA2"}

#: What may be given besides the config's fields: where and how transformers loads.
_OPTIONS = {"attn_implementation", "cache_dir", "dtype", "revision"}
#: Files that transformers takes weights from.
_WEIGHTS = (WEIGHTS, f"{WEIGHTS}.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class Folder:
    """A local model folder, or a repository of the hub, "owner/name".

    `overrides` is what `sta.load` was given besides. `bare` takes a folder without a classifier for
    its encoder alone.
    """

    def __init__(self, name: str, overrides: Mapping[str, Any], bare: bool = False) -> None:
        if "trust_remote_code" in overrides:
            raise ValueError(
                f"{name}: trust_remote_code is not possible: code that comes with a model is never "
                f"run; leave it out"
            )
        self.name = name
        self.local = Path(name).is_dir()
        options = {key: overrides[key] for key in _OPTIONS & overrides.keys()}
        self.fields = {key: value for key, value in overrides.items() if key not in options}
        self.places = {key: options[key] for key in ("cache_dir", "revision") if key in options}
        self.options = options
        self.cached_only = False
        if not self.local:
            from sta.backbones.zoo.fetch import hub_answers

            self.cached_only = not hub_answers()
        self.config = self._config()
        self.kind = str(self.config.get("model_type"))
        classes = self.config.get("architectures") or ["ForVideoClassification"]
        self.bare = bare and not str(classes[0]).endswith("ForVideoClassification")

    def file(self, name: str) -> Path | None:
        """The path of one of its files; None where there is none."""
        if self.local:
            path = Path(self.name) / name
            return path if path.is_file() else None
        from transformers.utils import cached_file

        found = cached_file(
            self.name,
            name,
            local_files_only=self.cached_only,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **self.places,
        )
        return None if found is None else Path(found)

    def _config(self) -> dict[str, Any]:
        try:
            path = self.file(CONFIG)
        except OSError as error:
            raise self._unreachable() from error
        if path is None:
            if not self.local:
                raise self._unreachable()
            raise ValueError(
                f"{self.name}: not a folder that save_pretrained wrote: there is no {CONFIG} in it"
            )
        config = read_json(path)
        if "auto_map" in config:
            raise ValueError(
                f"{path}: auto_map asks for code that comes with the model, which is never run; "
                f"remove it if transformers has the model's class itself"
            )
        for field in ("attn_implementation", "_attn_implementation"):
            # transformers would fetch such a kernel from the hub and run it.
            if "/" in str(value := {**config, **self.options}.get(field, "")):
                raise ValueError(
                    f"{path}: {field}={value!r} asks for code from the hub, which is never run; "
                    f"use eager, sdpa or flash_attention_2"
                )
        return config

    def _unreachable(self) -> ConnectionError:
        return ConnectionError(
            f"{self.name}: there is no such folder, and it could not be downloaded from the hub. "
            f"Either connect and try again (hf download {self.name}), or download it elsewhere and "
            f"pass the folder or official file by its path"
        )

    def preprocessor(self) -> Path | None:
        """The file that says how frames become pixels; None where there is none."""
        return next((path for name in FILES if (path := self.file(name)) is not None), None)

    def class_names(self) -> tuple[str, ...] | None:
        """Of a Video Swin, which does not carry them itself."""
        names = self.config.get("id2label")
        if self.kind != SWIN or names is None:
            return None
        try:
            return tuple(str(names[str(number)]) for number in range(len(names)))
        except (KeyError, TypeError):
            raise ValueError(
                f"{Path(self.name) / CONFIG}: id2label must name the classes 0 to {len(names) - 1}"
            ) from None

    def load(self, new_head: bool) -> nn.Module:
        """The model, every tensor of it from the folder; a ValueError names what does not fit.

        `new_head` allows an untrained classifier where the folder has none that fits.
        """
        if self.local and not any(self.file(name) for name in _WEIGHTS):
            others = sorted(
                path.name
                for path in Path(self.name).iterdir()
                if path.suffix in (".bin", ".pt", ".pth", ".safetensors")
            )
            hint = f"; {', '.join(others)} may be a checkpoint: pass its path" if others else ""
            raise ValueError(f"{self.name}: there are no weights in it ({WEIGHTS}){hint}")
        try:
            return self._swin(new_head) if self.kind == SWIN else self._pretrained(new_head)
        except safetensors.SafetensorError as error:
            raise ValueError(
                f"{self.name}: {WEIGHTS} is damaged or incomplete ({error}); copy it again"
            ) from None
        except pickle.UnpicklingError:
            raise ValueError(
                f"{self.name}: its pickle holds Python objects besides tensors, which are not "
                f"loaded because they can run code; save the model as {WEIGHTS} where you trust it"
            ) from None

    def _swin(self, new_head: bool) -> nn.Module:
        from sta.backbones.zoo import swin

        about = {"model_type", "architectures", "id2label", "label2id", "transformers_version"}
        arguments = {key: value for key, value in self.config.items() if key not in about}
        if self.config.get("id2label"):
            arguments.setdefault("num_classes", len(self.config["id2label"]))
        model = swin.build({**arguments, **self.fields})
        path = self.file(WEIGHTS)
        if path is None:
            raise ValueError(f"{self.name}: a Video Swin's weights are expected in {WEIGHTS}")
        state = read_state(path)
        add_stored(model, state)
        own = model.state_dict()
        # Index tables are the same in every model of these settings; files may go without.
        state = {**{n: t for n, t in own.items() if not t.is_floating_point()}, **state}
        wrong = wrong_shapes(own, state)
        self._check(own.keys() - state.keys(), state.keys() - own.keys(), wrong, new_head, "head.")
        taken = state.keys() & own.keys() - {name for name, *_ in wrong}
        model.load_state_dict({name: state[name] for name in taken}, strict=False)
        return model

    @quick_positions()
    def _pretrained(self, new_head: bool) -> nn.Module:
        known, auto = self._classes()
        if (direct := self._direct(type(known), auto)) is not None:
            return direct
        for name, value in self.fields.items():
            if not hasattr(known, name):
                raise ValueError(
                    f"{self.name}: {name}={value!r} is not a field of {type(known).__name__}; "
                    f"leave it out"
                )
        try:
            with _quiet():
                model, info = auto.from_pretrained(
                    self.name,
                    local_files_only=self.cached_only,
                    trust_remote_code=False,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # `info` has them, and they are refused here
                    **{"dtype": "float32", **self.options},
                    **self.fields,
                )
        except OSError as error:
            if self.local:
                raise ValueError(
                    f"{self.name}: not a folder that save_pretrained wrote ({_one_line(error)})"
                ) from error
            raise self._unreachable() from error
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{self.name}: {_one_line(error)}") from error
        body = f"{model.base_model_prefix}."
        wrong = [(name, tuple(found), tuple(own)) for name, found, own in info["mismatched_keys"]]
        missing, unexpected = info["missing_keys"], info["unexpected_keys"]
        if self.bare:
            unexpected = []  # of the decoder that it was trained with
        self._check(missing, unexpected, wrong, new_head, *_outside(model, body))
        network: nn.Module = model
        return network.eval()

    def _direct(self, config: Any, kind: Any) -> nn.Module | None:
        """The model straight from a folder whose tensors are those of its class, name by name.

        transformers' own loader, which takes far longer to start, is for all others: None.
        """
        path = self.file(WEIGHTS)
        if not self.local or path is None or self.options or self.kind not in _CLASSES:
            return None
        from transformers.initialization import no_init_weights

        fields = {name for name in self.fields if not hasattr(config(), name)}
        if fields:
            return None  # they are refused with a sentence
        with safetensors.safe_open(path, "pt") as file, no_init_weights():
            made = config.from_dict({**self.config, **self.fields})
            made.name_or_path = self.name
            model: nn.Module = kind(made).float()
            own = model.state_dict()
            found = {_current(name): name for name in file.keys()}  # noqa: SIM118, no dict
            if own.keys() != found.keys():
                return None
            for name, tensor in own.items():
                if list(tensor.shape) != file.get_slice(found[name]).get_shape():
                    return None
                tensor.copy_(file.get_tensor(found[name]))
        return model.eval()

    def _classes(self) -> tuple[Any, Any]:
        """An empty config of the model, and the class that loads it."""
        import transformers

        if self.kind in _CLASSES:  # transformers' own lists would import far more
            name = _CLASSES[self.kind]
            kind = "Model" if self.bare else "ForVideoClassification"
            return getattr(transformers, f"{name}Config")(), getattr(transformers, name + kind)
        if self.kind not in transformers.CONFIG_MAPPING:
            raise ValueError(
                f"{self.name}: {CONFIG} is of model_type {self.kind!r}, which neither transformers "
                f"nor sta knows; expected e.g. videomae, vivit, vjepa2 or {SWIN}"
            )
        auto = transformers.AutoModelForVideoClassification
        return transformers.CONFIG_MAPPING[
            self.kind
        ](), transformers.AutoModel if self.bare else auto

    def _check(
        self,
        missing: Collection[str],
        unexpected: Collection[str],
        wrong: Collection[WrongShape],
        new_head: bool,
        *head: str,
    ) -> None:
        """Refuse weights that are made up or left out, but for a head that is to be new."""
        if new_head:
            missing = [name for name in missing if not name.startswith(head)]
            wrong = [part for part in wrong if not part[0].startswith(head)]
            unexpected = []  # of the model's former head
        if problem := misfits(missing, unexpected, wrong):
            raise ValueError(
                f"{self.name}: its weights are not those of the model in {CONFIG}: {problem}. "
                f"Save the model again, whole"
                + ("" if new_head else "; for training, a new head can be asked for")
            )


def _current(name: str) -> str:
    """What a tensor is called in the class; VideoMAE's files keep the names of its authors."""
    return name.replace(".q_bias", ".query.bias").replace(".v_bias", ".value.bias")


def _outside(model: nn.Module, body: str) -> tuple[str, ...]:
    """Prefixes of a model's tensors that are not its backbone's: pooling, norm and classifier."""
    names = (name.split(".")[0] + "." for name in model.state_dict())
    return tuple({name for name in names if name != body})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars, and its report of tensors that do not fit: `load` has its own."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def save_folder(
    model: nn.Module, folder: str | Path, clip: ClipSpec, class_names: Collection[str]
) -> None:
    """Write a model without a method for `sta.load`, with all that it expects and tells."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = dict(enumerate(class_names))
    config: Any = getattr(model, "config", None)
    if config is not None:
        config.id2label, config.label2id = names, {name: n for n, name in names.items()}
        with _quiet():
            model.save_pretrained(folder)  # type: ignore[operator]
        write_clip(folder, clip, str(config.model_type))
        return
    from sta.backbones.zoo import swin

    state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors lets nobody else read
    content = {"model_type": SWIN, **swin.arguments(model), "id2label": names}
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    write_clip(folder, clip, None)
