"""Vision models as torchvision and timm publish them: code of others, at the sizes that they publish.

Both packages are an extra, `vision`; where one is not installed there are none of its models. Weights are
drawn (nothing is downloaded), those too that these packages begin with zeros, ones or a millionth, since a
scale of 0 or 1e-6 hides whatever stands before it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch
from torch import nn

from benchmarks.architectures.language import Built
from benchmarks.architectures.vision import image, trained

_NUM_CLASSES = 10

_TORCHVISION: dict[int, tuple[str, ...]] = {
    64: ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"),
    96: (
        *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet"),
        *("inception_v3", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf"),
        *("regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5"),
        *("squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn"),
    ),
    224: ("maxvit_t", "vit_b_32"),
}
"""Names of torchvision's models, by the extent of the image; 224, where they take no smaller one."""

_TIMM: dict[int, tuple[str, ...]] = {
    64: (
        *("test_byobnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet"),
        *("test_efficientnet_evos", "test_efficientnet_gn", "test_efficientnet_ln", "test_mambaout"),
        *("test_nfnet", "test_resnet", "test_vit", "test_vit2", "test_vit4"),
        *(
            "convmixer_768_32",
            "convnext_zepto_rms",
            "cpubone_nano",
            "crossvit_tiny_240",
            "cs3darknet_focus_s",
        ),
        *("csatv2", "cspnext_tiny", "davit_tiny", "dla46_c", "dpn48b", "edgenext_x_small", "efficientvim_m1"),
        *("efficientvit_b0", "efficientvit_m0", "ese_vovnet19b_slim", "fasternet_t0", "fastvit_t8"),
        *("focalnet_tiny_srf", "ghostnet_050", "hardcorenas_b", "hgnetv2_b0", "hrnet_w18_small", "iformer_t"),
        *("inception_next_atto", "lcnet_035", "lcnetv2_small", "legacy_seresnet18", "lowformer_b0"),
        *("mixnet_s", "mobilevit_xs", "mvitv2_tiny", "poolformerv2_s12", "pvt_v2_b0", "rdnet_tiny"),
        *("regnetx_002", "repghostnet_050", "repvit_m1", "res2next50", "resnest14d", "resnetv2_18"),
        *("rexnet_100", "sam2_hiera_tiny", "selecsls42", "sequencer2d_s", "shvit_s1", "skresnet18"),
        *("starnet_s1", "swiftformer_xs", "tresnet_m", "twins_svt_small", "vit_tiny_patch16_dinov3_qkvb"),
        *("xception41p", "xcit_nano_12_p8_224"),
    ),
    160: ("test_coatnet", "test_maxvit", "test_vit3", "test_vit_relpos"),
    224: (
        *("cait_xxs24_224", "coat_tiny", "convit_tiny", "deit_tiny_patch16_224", "efficientformer_l1"),
        *("efficientformerv2_s0", "gcvit_xxtiny", "gmlp_ti16_224", "hiera_tiny_224", "levit_128s"),
        *("nest_tiny", "pit_ti_224", "swinv2_cr_tiny_224", "tiny_vit_5m_224", "tnt_s_legacy_patch16_224"),
        *("visformer_tiny", "vit_tiny_r_s16_p8_224", "volo_d1_224"),
    ),
    256: ("halonet_h1",),
}
"""Names of timm's models, likewise: the smallest of a family, and those that timm tests itself with."""


def of_torchvision(name: str, extent: int) -> Built:
    """Return a model of torchvision, without the outputs that only its training has, and an image."""
    models = _torchvision().models
    settings: dict[str, object] = {"weights_backbone": None} if name in _TORCHVISION[64] else {}
    if name in ("googlenet", "inception_v3"):
        settings = {"aux_logits": False, "init_weights": False}
    module = models.get_model(name, weights=None, num_classes=_NUM_CLASSES, **settings)
    return with_drawn_weights(trained(module)), image(extent)


def of_timm(name: str, extent: int) -> Built:
    """Return a classifier of timm and an image."""
    _torchvision()
    module = importlib.import_module("timm").create_model(name, num_classes=_NUM_CLASSES)
    return with_drawn_weights(trained(module)), image(extent)


def with_drawn_weights(module: nn.Module) -> nn.Module:
    """Return a module none of whose weights is one number everywhere: those are drawn, scales about 0.5."""
    with torch.no_grad():
        for weight in module.parameters():
            first = weight.flatten()[:1]
            if not weight.is_floating_point() or not bool((weight == first).all()):
                continue
            if first == 0:
                nn.init.normal_(weight, std=0.1)
            elif abs(first) < 0.3:
                nn.init.uniform_(weight, 0.3, 0.7)
            else:
                weight.mul_(torch.empty_like(weight).uniform_(0.7, 1.3))
    return module


_POOLS = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")

_OPERATORS = (
    *("nms", "qnms", "deform_conv2d", "_deform_conv2d_backward", *_POOLS),
    *(f"_{name}_backward" for name in _POOLS),
)
"""Torchvision's compiled operators that its own import speaks of."""


def _torchvision() -> ModuleType:
    """Import torchvision; its compiled operators, which none of these models calls, may be missing.

    The wheels of its default registry are built for torch with CUDA. Beside a torch for CPUs their operators
    do not load, and the import fails, since it registers functions for them.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        library.define(f"{name}(Tensor operand) -> Tensor")
    _LIBRARIES.append(library)
    return importlib.import_module("torchvision")


_LIBRARIES: list[torch.library.Library] = []
"""Kept for as long as the process runs: an operator goes with its library."""


def _installed() -> Iterator[tuple[str, Callable[[], Built]]]:
    for package, build, names in (
        ("torchvision", of_torchvision, _TORCHVISION),
        ("timm", of_timm, _TIMM),
    ):
        if importlib.util.find_spec("torchvision") and importlib.util.find_spec(package):
            for extent, names_of_extent in names.items():
                for name in names_of_extent:
                    yield f"{package}-{name}".replace("_", "-"), partial(build, name, extent)


if importlib.util.find_spec("torchvision"):
    _torchvision()  # transformers imports it, too, wherever it is installed, and fails with it

PACKAGED: dict[str, Callable[[], Built]] = dict(_installed())
"""Builder by name, of the packages that are installed."""
