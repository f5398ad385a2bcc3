import pytest
import torch
from torch import Tensor, nn

from midreel.features.backbones.slowfast_net import ConvNorm, SlowFast, slow_frames

# The paper's Table 1 at alpha 4: frames x height x width after each stage, and its channels, slow and fast.
TABLE = {
    "stem": ((64, 8, 112, 112), (8, 32, 112, 112)),
    "stages.0": ((256, 8, 56, 56), (32, 32, 56, 56)),
    "stages.1": ((512, 8, 28, 28), (64, 32, 28, 28)),
    "stages.2": ((1024, 8, 14, 14), (128, 32, 14, 14)),
    "stages.3": ((2048, 8, 7, 7), (256, 32, 7, 7)),
}
LATERALS = [(16, 8, 56, 56), (64, 8, 56, 56), (128, 8, 28, 28), (256, 8, 14, 14)]


@pytest.fixture
def small() -> SlowFast:
    """A network with one channel in the fast pathway, and norms that change values."""
    network = SlowFast(width=8).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d):
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                assert values is not None
                nn.init.uniform_(values, 0.5, 1.5)
    return network.requires_grad_(False)


def _outputs(network: SlowFast, clips: Tensor) -> dict[str, Tensor]:
    """Return the output of each module by its name, and its input under 'name <'."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> None:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[f"{name} <"], seen[name] = inputs[0], output

        network.get_submodule(name).register_forward_hook(hook)

    for name, _ in network.named_modules():
        if name:
            note(name)
    network(clips)
    return seen


def test_stages_have_the_sizes_of_the_papers_table() -> None:
    with torch.device("meta"):
        network = SlowFast().eval()
        seen = _outputs(network, torch.empty(2, 3, 32, 224, 224))
    for stage, (slow, fast) in TABLE.items():
        assert tuple(seen[f"slow.{stage}"].shape) == (2, *slow)
        assert tuple(seen[f"fast.{stage}"].shape) == (2, *fast)
    for number, lateral in enumerate(LATERALS):
        assert tuple(seen[f"laterals.{number}"].shape) == (2, *lateral)
        slow = seen[f"slow.stages.{number} <"].shape
        width_in = 64 if number == 0 else TABLE[f"stages.{number - 1}"][0][0]
        assert slow[1] == width_in + lateral[0]
    assert network.width_out == 2048 + 256


def test_the_number_of_parameters_is_the_published_one() -> None:
    with torch.device("meta"):
        body = sum(weight.numel() for weight in SlowFast().parameters())
    classes = (2048 + 256) * 400 + 400
    assert body + classes == 34_566_488
    assert f"{(body + classes) / 1e6:.2f}" == "34.57"


def test_the_slow_pathway_has_eight_evenly_spaced_frames() -> None:
    assert slow_frames(32).tolist() == [0, 4, 8, 13, 17, 22, 26, 31]
    assert slow_frames(64).tolist() == torch.linspace(0, 63, 16).long().tolist()


def test_the_input_of_each_pathway(small: SlowFast) -> None:
    clips = torch.randn(2, 3, 32, 32, 32)
    seen = _outputs(small, clips)
    assert torch.equal(seen["fast.stem <"], clips)
    assert torch.equal(seen["slow.stem <"], clips[:, :, [0, 4, 8, 13, 17, 22, 26, 31]])


def _slow_lateral(layer: ConvNorm, fast: Tensor) -> Tensor:
    """Sum seven weighted frames around every fourth frame, at each position; then apply the norm and ReLU."""
    num, width_in, num_frames, height, width = fast.shape
    result = torch.zeros(num, len(layer.conv.weight), num_frames // 4, height, width)
    mean, variance = layer.norm.running_mean, layer.norm.running_var
    assert mean is not None
    assert variance is not None
    for clip, out, frame, y, x in torch.cartesian_prod(*map(torch.arange, result.shape)).tolist():
        total = 0.0
        for channel in range(width_in):
            for offset in range(-3, 4):
                if 0 <= 4 * frame + offset < num_frames:
                    weight = layer.conv.weight[out, channel, offset + 3, 0, 0].item()
                    total += weight * fast[clip, channel, 4 * frame + offset, y, x].item()
        normed = (total - mean[out].item()) / (variance[out].item() + 1e-5) ** 0.5
        result[clip, out, frame, y, x] = max(0.0, normed * layer.norm.weight[out].item() + layer.norm.bias[out].item())
    return result


@pytest.mark.parametrize("number", [0, 1])
def test_the_fast_pathway_is_appended_to_the_slow_one(small: SlowFast, number: int) -> None:
    seen = _outputs(small, torch.randn(2, 3, 32, 16, 16))
    lateral = small.laterals[number]
    assert isinstance(lateral, ConvNorm)
    fast = seen[f"laterals.{number} <"]
    assert torch.equal(fast, seen[f"fast.stages.{number} <"])
    shown = seen[f"slow.stages.{number} <"]
    own = shown.shape[1] - len(lateral.conv.weight)
    torch.testing.assert_close(shown[:, own:], _slow_lateral(lateral, fast), atol=1e-5, rtol=1e-5)
    if number:
        assert torch.equal(shown[:, :own], seen[f"slow.stages.{number - 1}"])


def test_a_clip_does_not_depend_on_its_batch(small: SlowFast) -> None:
    clips = torch.randn(3, 3, 32, 32, 48)
    together = small(clips)
    for clip, expected in zip(clips, together, strict=True):
        torch.testing.assert_close(small(clip[None])[0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(small(clips.flip(0)), together.flip(0), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-3)


def test_the_order_of_frames_matters(small: SlowFast) -> None:
    clip = torch.randn(1, 3, 32, 32, 32)
    assert not torch.allclose(small(clip), small(clip.flip(2)), atol=1e-3)
