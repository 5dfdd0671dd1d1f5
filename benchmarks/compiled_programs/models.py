"""Models that others publish, by name: files that packages of PyPI ship, and modules of such packages.

Packages that bring weights are used with them (magika, Silero VAD, faster-whisper, basic-pitch, RapidOCR,
nudenet, speechmos, ddddocr, Resemblyzer, torchcrepe); weights of the others are drawn, since nothing is
downloaded. None is a dependency: each is found on the import path, and where it is not, its models are left
out. A model is named in text, as `python -m benchmarks.compiled_programs` takes it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    Built = tuple[nn.Module, tuple[Tensor, ...]]

_VISION = {
    "torchvision": (
        "resnet18",
        "mobilenet_v3_small",
        "squeezenet1_1",
        "efficientnet_b0",
        "shufflenet_v2_x0_5",
    ),
    "timm": ("convnext_atto", "vit_tiny_patch16_224", "lcnet_050", "mobilevit_xxs", "ghostnet_050"),
}
"""Names of classifiers, which take an image of 224 x 224 pixels."""

_LANGUAGE = ("Bert", "DistilBert", "GPT2", "Llama")
"""Families of transformers: 4 layers of 256 channels, 64 tokens."""

_FILES = {
    "magika": "magika/models/standard_v3_3/model.onnx@bytes=1,2048",
    "silero_vad": "silero_vad/data/silero_vad_openvino_16k.onnx@input=1,576@state=2,1,128",
    "silero_vad_sequence": "silero_vad/data/silero_vad_16k_sequence.onnx@input=4,576@h=1,1,128@c=1,1,128",
    "silero_vad_op15": "silero_vad/data/silero_vad_16k_op15.onnx@input=1,576@state=2,1,128@sr:=16000",
    "silero_vad_half": "silero_vad/data/silero_vad_half.onnx@input=1,576@state=2,1,128",
    "faster_whisper_vad": "faster_whisper/assets/silero_vad_v6.onnx@input=16,576@h=1,1,128@c=1,1,128",
    "basic_pitch": "basic_pitch/saved_models/icassp_2022/nmp.onnx@serving_default_input_2:0=1,43844,1",
    "pp_ocr_direction": "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx@x=1,3,48,192",
    "pp_ocr_recognition": "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx@x=1,3,48,320",
    "pp_ocr_detection": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx@x=1,3,320,320",
    "nudenet": "nudenet/320n.onnx@images=1,3,320,320",
    "dnsmos_p808": "speechmos/dnsmos_models/model_v8.onnx@input_1=1,900,120",
    "dnsmos": "speechmos/dnsmos_models/sig_bak_ovr.onnx@input_1=1,144160",
    "aecmos": "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx@input=1,3,200,160@h0=4,1,64",
    "plcmos": "speechmos/plcmos_models/plcmos_v2.onnx@degraded_audio=1,1,200,257@rater_embed=1,64",
    "ddddocr": "ddddocr/common_old.onnx@input1=1,1,64,160",
    "ddddocr_detection": "ddddocr/common_det.onnx@images=1,3,416,416",
}

_MODULES = {
    "torchcrepe_tiny": "torchcrepe:tiny",
    "torchcrepe_full": "torchcrepe:full",
    **{name: f"{package}:{name}" for package, names in _VISION.items() for name in names},
    **{name.lower(): f"transformers:{name}" for name in _LANGUAGE},
    "resemblyzer": "resemblyzer",  # last: three layers of 160 steps, written out, take minutes
}

PUBLISHED = {
    **_FILES,
    **{name: f"benchmarks.compiled_programs.models:{which}" for name, which in _MODULES.items()},
}
"""Text by name."""


@dataclass(frozen=True)
class NamedModel:
    """A model as it was named: a function's, or a file's with shapes and values.

    Attributes:
        title: what reports call it.
        location: `module:function`, or the path of a file, also below a folder of the import path.
        shapes: static shapes by name of input.
        values: inputs that become constants.
    """

    title: str
    location: str
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, int]

    @classmethod
    def of(cls, text: str) -> NamedModel:
        """Return the model of a name in `PUBLISHED`, or of a text such as is there."""
        location, *settings = PUBLISHED.get(text, text).split("@")
        values = [each.partition(":=") for each in settings if ":=" in each]
        shapes = [each.rpartition("=") for each in settings if ":=" not in each]
        is_file = location.endswith(".onnx")
        return cls(
            text if text in PUBLISHED else Path(location).stem if is_file else location.rpartition(":")[2],
            _found(location) if is_file else location,
            {name: tuple(map(int, filter(None, shape.split(",")))) for name, _, shape in shapes},
            {name: int(value) for name, _, value in values},
        )

    @property
    def is_file(self) -> bool:
        """Whether it is an ONNX file."""
        return self.location.endswith(".onnx")

    def built(self) -> Built:
        """Return the module in evaluation mode with its inputs; weights and inputs are the same each time."""
        import torch  # noqa: PLC0415 - files are run without it

        torch.manual_seed(0)
        location, _, function = self.location.partition(":")
        if location == __name__ and function in _MODULES.values():
            module, inputs = _published(*function.partition(":")[::2])
        else:
            module, inputs = getattr(importlib.import_module(location), function)()
        return module.eval(), tuple(inputs)


def perceptron() -> Built:
    """Return two small layers: nearly all of their time is the call's."""
    import torch  # noqa: PLC0415 - as above

    layers = (torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    return torch.nn.Sequential(*layers), (torch.randn(1, 32),)


def _found(path: str) -> str:
    places = (Path(folder) / path for folder in ("", *sys.path))
    return str(next((place for place in places if place.is_file()), path))


def _published(package: str, name: str) -> Built:
    import torch  # noqa: PLC0415 - as above

    if package == "resemblyzer":
        encoder = _part_of(package, "voice_encoder", audio=None).VoiceEncoder("cpu", verbose=False)
        return encoder, (torch.rand(1, 160, 40),)
    if package == "torchcrepe":
        crepe = _part_of(package, "model", PITCH_BINS=360).Crepe(name)
        (weights,) = Path(sys.modules[package].__path__[0]).glob(f"assets/{name}.pth")
        crepe.load_state_dict(torch.load(weights, weights_only=True))
        return crepe, (torch.randn(4, 1024),)
    # Where torchvision is installed without its compiled operators, transformers is imported after this.
    from benchmarks.architectures.packaged import of_timm, of_torchvision  # noqa: PLC0415 - seconds

    if package == "transformers":
        return _language_model(name)
    return (of_timm if package == "timm" else of_torchvision)(name, 224)


def _language_model(family: str) -> Built:
    import torch  # noqa: PLC0415 - as above
    import transformers  # noqa: PLC0415 - seconds

    usual: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256}
    own: dict[str, dict[str, Any]] = {
        "Bert": {**usual, "intermediate_size": 1024},
        "DistilBert": {"n_layers": 4, "n_heads": 4, "dim": 256, "hidden_dim": 1024},
        "GPT2": {"n_layer": 4, "n_head": 4, "n_embd": 256, "use_cache": False},
        "Llama": {**usual, "intermediate_size": 688, "use_cache": False},
    }
    config = getattr(transformers, f"{family}Config")(vocab_size=1024, **own[family])
    kind = "ForCausalLM" if family == "Llama" else "LMHeadModel" if family == "GPT2" else "ForMaskedLM"
    model = getattr(transformers, f"{family}{kind}")(config)
    return model, (torch.randint(0, 256, (1, 64)),)


def _part_of(package: str, module: str, **attributes: object) -> ModuleType:
    """Import one module of a package whose other modules need libraries that read sound."""
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"{package} is not installed")
        whole = ModuleType(package)
        whole.__path__ = list(spec.submodule_search_locations)
        vars(whole).update(attributes)
        sys.modules[package] = whole
    return importlib.import_module(f"{package}.{module}")
