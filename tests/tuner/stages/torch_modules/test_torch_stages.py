"""Stages of a torch module, chained, equal the module: outputs, gradients, ties and buffers."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is installed

from tuner.errors import TunerError, UnknownNameError  # noqa: E402 - it imports torch
from tuner.frontend.loss import with_loss  # noqa: E402 - as above
from tuner.frontend.torch.program import import_module  # noqa: E402 - as above
from tuner.plan import TiedParameter  # noqa: E402 - as above
from tuner.stages import build_stages, cut_after, cut_pipeline_stage  # noqa: E402 - as above
from tuner.stages.torch_stages import split_module  # noqa: E402 - as above

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x, memory=None):
        x = x + torch.tanh(self.linear(self.norm(x)))
        return x if memory is None else x * torch.sigmoid(memory)


class Stack(nn.Module):
    def __init__(self, num_layers):
        super().__init__()
        self.layer = nn.ModuleList(Block() for _ in range(num_layers))
        self.norm = nn.LayerNorm(8)

    def forward(self, x, memory=None):
        for layer in self.layer:
            x = layer(x, memory)
        return self.norm(x)


class EncoderDecoder(nn.Module):
    """Embeddings and head are one tensor; the encoder's memory is read by every decoder layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.encoder = Stack(3)
        self.decoder = Stack(3)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source, target):
        memory = self.encoder(self.embed(source))
        return self.head(self.decoder(self.embed(target), memory))


class Branches(nn.Module):
    """Returns a dict of a tensor and a tuple; what the first layer makes is read by all."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        start = self.first(x)
        left, right = start.chunk(2, dim=-1)
        left = self.middle(left)
        end = self.last(torch.cat([left, right], dim=-1))
        return {"logits": end, "states": (start, left.mean())}


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu_()
        return x


def tokens(*shape):
    return torch.randint(0, 16, shape)


def check_equal(module, inputs, pipeline):
    """Compare outputs and every weight's gradient, which tied stages add up in the tensor that they share."""
    results = []
    for function in (module, pipeline.run):
        module.zero_grad()
        outputs = function(*inputs)
        leaves = torch.utils._pytree.tree_leaves(outputs)
        sum((leaf.float() * (index + 1)).square().sum() for index, leaf in enumerate(leaves)).backward()
        results.append((outputs, {name: value.grad.clone() for name, value in module.named_parameters()}))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    ("cuts", "num_stages"),
    [
        (["encoder.layer.0", "decoder.layer.1"], 3),
        (["encoder.layer.0", "encoder", "decoder.layer.1"], 4),
        (["encoder"], 2),
        (["encoder.layer.0", "encoder.layer.1", "encoder.layer.2", "decoder.layer.0"], 5),
    ],
)
def test_an_encoder_and_a_decoder_cut_at_nested_names(cuts, num_stages):
    torch.manual_seed(0)
    module, inputs = EncoderDecoder(), (tokens(2, 5), tokens(2, 5))
    pipeline = split_module(module, inputs, cuts)
    assert len(pipeline.stages) == num_stages
    for before, after in itertools.pairwise(pipeline.stages):
        assert before.sent == after.received
    check_equal(module, inputs, pipeline)


def test_one_tensor_as_the_example_of_two_inputs_leaves_them_two():
    module, example = EncoderDecoder(), tokens(2, 5)
    pipeline = split_module(module, (example, example), ["encoder"])
    check_equal(module, (tokens(2, 5), tokens(2, 5)), pipeline)


def test_memory_is_relayed_and_the_tied_table_lives_in_three_stages():
    module, inputs = EncoderDecoder(), (tokens(2, 5), tokens(2, 5))
    pipeline = split_module(module, inputs, ["encoder", "decoder.layer.0", "decoder.layer.1"])
    memory = pipeline.stages[0].sent[0].name
    assert [stage.relayed for stage in pipeline.stages] == [(), (memory,), (memory,), ()]
    assert [stage.sent[0].name for stage in pipeline.stages[:-1]] == [memory] * 3
    (group,) = pipeline.tied
    assert group == (
        TiedParameter("embed.weight", 0),
        TiedParameter("embed.weight", 1),
        TiedParameter("head.weight", 3),
    )


def test_marks_in_the_module_are_cuts():
    module, inputs = EncoderDecoder(), (tokens(2, 5), tokens(2, 5))
    cut_pipeline_stage(module.encoder.layer[1])
    cut_pipeline_stage(module.decoder.layer[0])
    pipeline = split_module(module, inputs)
    assert [stage.layers[-1] for stage in pipeline.stages[:-1]] == ["encoder.layer.1", "decoder.layer.0"]
    check_equal(module, inputs, pipeline)
    model = with_loss(import_module(module, inputs, "marked"))
    stages = build_stages(model, cut_after(model))
    assert [stage.layers[-1] for stage in stages[:-1]] == ["encoder.layer.1", "decoder.layer.0"]


def test_branches_tuples_dicts_and_changes_in_place():
    module, inputs = Branches(), (torch.randn(3, 8),)
    pipeline = split_module(module, inputs, ["first", "middle.0"])
    assert pipeline.run(*inputs).keys() == {"logits", "states"}
    check_equal(module, inputs, pipeline)


def test_running_statistics_change_as_in_the_original():
    torch.manual_seed(0)
    module, inputs = Normed().train(), (torch.randn(4, 8),)
    pipeline = split_module(module, inputs, ["layers.0", "layers.1"])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(*inputs)
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(before)
    pipeline.run(*inputs)
    torch.testing.assert_close(dict(module.state_dict()), expected)
    check_equal(module, inputs, pipeline)


def test_each_micro_batch_is_normalised_by_itself_and_changes_the_statistics_in_turn():
    """Stage after stage runs all micro-batches, the most that a pipeline runs ahead."""
    torch.manual_seed(0)
    module = Normed().train()
    batches = [torch.randn(4, 8) * scale for scale in (1, 3, 9)]
    pipeline = split_module(module, (batches[0],), ["layers.0", "layers.1"])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    sum((module(batch).square().mean() / 3 for batch in batches), torch.zeros(())).backward()
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    gradients = {name: value.grad.clone() for name, value in module.named_parameters()}
    module.zero_grad()
    module.load_state_dict(before)
    known = [{pipeline.input_names[0]: batch} for batch in batches]
    for stage in pipeline.stages:
        for values in known:
            made = stage.module(*(values[info.name] for info in stage.inputs))
            values.update(zip((info.name for info in stage.outputs), made, strict=True))
    outputs = [pipeline.assemble(values) for values in known]
    sum((output.square().mean() / 3 for output in outputs), torch.zeros(())).backward()
    torch.testing.assert_close(dict(module.state_dict()), expected)
    torch.testing.assert_close({n: each.grad for n, each in module.named_parameters()}, gradients)
    assert (expected["layers.2.1.running_mean"] != before["layers.2.1.running_mean"]).all()


def test_weights_keep_their_names_and_are_the_originals():
    module = EncoderDecoder()
    pipeline = split_module(module, (tokens(2, 5), tokens(2, 5)), ["encoder"])
    for stage in pipeline.stages:
        for name in stage.parameters:
            assert stage.module.get_parameter(name) is module.get_parameter(name)


class Shared(nn.Module):
    """Two embeddings and a head of one weight, and a bias that goes by two names in one module."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"words": nn.Embedding(16, 8), "mix": nn.Linear(8, 8)})
        self.decoder = nn.ModuleDict({"words": nn.Embedding(16, 8), "mix": nn.Linear(8, 8)})
        self.head = nn.Linear(8, 16)
        self.end = nn.Linear(16, 16)
        self.decoder["words"].weight = self.head.weight = self.encoder["words"].weight
        self.end.bias = self.head.bias

    def forward(self, source, target):
        memory = self.encoder["mix"](self.encoder["words"](source))
        x = self.decoder["mix"](self.decoder["words"](target))
        logits = self.head(torch.tanh(x + memory)) + self.encoder["words"].weight.sum()
        return self.end(torch.relu(logits))


def test_each_stage_calls_a_tied_weight_as_the_user_does_where_it_is_read():
    torch.manual_seed(0)
    module, inputs = Shared(), (tokens(2, 5), tokens(2, 5))
    pipeline = split_module(module, inputs, ["encoder.mix", "decoder.mix"])
    (group,) = pipeline.tied  # The bias is tied within a stage, where autograd adds.
    assert group == (
        TiedParameter("encoder.words.weight", 0),
        TiedParameter("decoder.words.weight", 1),
        TiedParameter("head.weight", 2),
        TiedParameter("encoder.words.weight", 2),
    )
    assert {"head.bias", "end.bias"} <= set(pipeline.stages[2].parameters)
    own = dict(module.named_parameters(remove_duplicate=False))
    for stage in pipeline.stages:
        assert set(stage.module.state_dict()) == set(stage.parameters)
        assert all(stage.module.get_parameter(name) is own[name] for name in stage.parameters)
    check_equal(module, inputs, pipeline)


class Handing(nn.Module):
    """Returns its inputs, None and numbers beside what it computes, in a dict and a tuple."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        hidden = self.first(x)
        end = self.second(torch.relu(hidden) * mask)
        return {"past": None, "end": end, "mask": mask, "more": (None, x, hidden, 3, "text", 0.5), "again": x}


@pytest.mark.parametrize("cuts", [[], ["first"]])
def test_inputs_none_and_numbers_are_returned_as_the_module_does(cuts):
    torch.manual_seed(0)
    module, inputs = Handing(), (torch.randn(3, 8), torch.randn(3, 8))
    pipeline = split_module(module, (torch.randn(3, 8), torch.ones(3, 8)), cuts)
    found, expected = pipeline.run(*inputs), module(*inputs)
    leaves = [torch.utils._pytree.tree_flatten(each) for each in (found, expected)]
    assert leaves[0][1] == leaves[1][1]
    for ours, true in zip(leaves[0][0], leaves[1][0], strict=True):
        assert torch.equal(ours, true) if isinstance(true, torch.Tensor) else ours == true
    assert found["mask"] is inputs[1]
    assert found["more"][1] is found["again"] is inputs[0]


def test_a_module_that_returns_its_input_alone_is_one_stage():
    x = torch.randn(3)
    assert split_module(nn.Sequential(nn.Identity()), (torch.ones(3),), []).run(x) is x


class DataDependent(nn.Module):
    def forward(self, x):
        return x.exp() if x.sum() > 0 else x.tanh()


class ReturnsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x), self.linear.weight


@pytest.mark.parametrize(
    ("module", "inputs", "cuts", "error", "message"),
    [
        (DataDependent(), (torch.ones(2),), [], TunerError, r"torch.export cannot trace DataDependent"),
        (Branches(), (torch.ones(3, 8),), ["frist"], UnknownNameError, r"no module 'frist'.*'first'"),
        (Branches(), (torch.ones(3, 8),), ["last"], TunerError, r"nothing runs after 'last'"),
        (ReturnsWeight(), (torch.ones(3, 8),), [], TunerError, r"returns its own tensor 'linear.weight'"),
    ],
)
def test_what_cannot_be_cut_is_refused(module, inputs, cuts, error, message, capfd):
    with pytest.raises(error, match=message):
        split_module(module, inputs, cuts)
    assert capfd.readouterr() == ("", "")
