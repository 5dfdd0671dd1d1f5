import pytest

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.shards.layouts import Replicated, split_axis
from tuner.shards.stage import shard_stage
from tuner.shards.vocabulary import vocabulary_layouts
from tuner.stages import build_stages, cut_between, layers_of

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("name", ["gpt2:tiny"])
def test_embedding_and_head_are_divided_by_words(name):
    model = load_model(name, training=True)
    layers = layers_of(model)
    stages = build_stages(model, cut_between(layers, (1, len(layers) - 1)))
    ends = (stages[0], stages[-1])
    layouts = vocabulary_layouts(ends, 3)
    assert layouts == {"transformer.wte.weight": split_axis(0, 512, 3)}
    for stage in ends:
        sharded = shard_stage(stage, layouts, 3)
        assert sharded.weight_bytes[0] < stage.weight_bytes / 2
        assert all(sharded.layouts[info.name] == Replicated() for info in stage.outputs)


def test_a_model_without_words_is_told_so():
    model = load_model("mlp", training=True)
    stages = build_stages(model, ())
    with pytest.raises(TunerError, match="look up no table"):
        vocabulary_layouts(stages, 2)
