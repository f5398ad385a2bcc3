"""The names of the weights of MS-SL and BGM-Net: of released checkpoints, and of midreel."""

from collections.abc import Mapping

from torch import Tensor

RELEASED: dict[str, str] = {
    "query_pos_embed": "query.position",
    "clip_pos_embed": "clip.position",
    "frame_pos_embed": "frame.position",
    "query_input_proj": "query.project",
    "clip_input_proj": "clip.project",
    "frame_input_proj": "frame.project",
    "query_encoder": "query.block",
    "clip_encoder": "clip.block",
    "frame_encoder": "frame.block",
    "modular_vector_mapping": "query.pool.score",
    "mapping_linear.0": "frame_key",
    "mapping_linear.1": "frame_value",
}
PARTS = {
    "position_embeddings": "table",
    "output.LayerNorm": "norm",
    "LayerNorm": "norm",
    "net.1": "linear",
    "self.query": "query",
    "self.key": "key",
    "self.value": "value",
    "output.dense": "output",
}


def renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a released checkpoint under midreel's names."""
    result = {}
    for name, weight in weights.items():
        module, kind = name.rsplit(".", 1)
        layer = next(layer for layer in RELEASED if module == layer or module.startswith(f"{layer}."))
        part = module.removeprefix(layer).removeprefix(".")
        result[".".join(filter(None, (RELEASED[layer], PARTS.get(part, part), kind)))] = weight
    return result
