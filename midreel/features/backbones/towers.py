"""The towers of a CLIP or SigLIP as ONNX graphs: the encoders of images and of texts, made from config and weights.

torch is not needed: a tower is a transformer, and its few operations are written here as nodes of a graph. The weights
are those of the folder in the Hugging Face format, under the names that transformers gives them. So a folder needs no
second file for onnxruntime, and both engines compute from the same bytes.

With `int8`, the weights of the linear layers are rounded to eight bits, with one scale for each output channel. The
inputs of a layer are rounded when they are known. This is faster where the processor multiplies bytes (VNNI), and less
precise: docs/results/start-speed.md.

Axes: N images or texts, L tokens, C width. Between the layers, tokens are rows of one matrix, (N L) × C.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from midreel.features.backbones.preprocess import Preprocessing
from midreel.io.onnx_graph import Graph

Weights = Mapping[str, NDArray[Any]]
ACTIVATIONS = ("gelu", "quick_gelu", "gelu_pytorch_tanh")
_QUICK = 1.702  # of the sigmoid that approximates GELU in OpenAI's CLIP


@dataclass(frozen=True, kw_only=True)
class Tower:
    """The sizes of one tower, as config.json states them.

    Attributes:
        width: The width of a token.
        layers: The number of layers.
        heads: The number of heads of the attention.
        activation: The activation between the two linear layers.
        eps: The number that LayerNorm adds to the variance.
    """

    width: int
    layers: int
    heads: int
    activation: str
    eps: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Tower":
        """Return the sizes in the part of a config that describes one tower."""
        return cls(
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            activation=config["hidden_act"],
            eps=config["layer_norm_eps"],
        )


class Builder:
    """A graph, and the operations that all towers share.

    Args:
        weights: The weights of the folder.
        tower: The sizes of the tower.
        int8: Round the weights to eight bits.
    """

    def __init__(self, weights: Weights, tower: Tower, int8: bool) -> None:
        self.graph, self._weights, self.tower, self._int8 = Graph(), weights, tower, int8
        self._heads = tower.heads

    def weight(self, name: str) -> str:
        """Add a weight of the folder to the graph, and return its name."""
        return self.graph.constant(self.array(name), name)

    def array(self, name: str) -> NDArray[Any]:
        """Return a weight of the folder."""
        return self._weights[name]

    def scalar(self, number: float) -> str:
        """Add a number, and return its name."""
        return self.graph.constant(np.array(number, np.float32), f"number_{number}")

    def linear(self, rows: str, name: str, *, bias: bool = True) -> str:
        """Multiply rows by a matrix of the folder, and add its bias.

        Args:
            rows: The name of the rows.
            name: The name of the layer.
            bias: Whether it has a bias.
        """
        return self.product(
            rows, self.array(f"{name}.weight"), self.array(f"{name}.bias") if bias else None, f"{name}.weight"
        )

    def product(
        self, rows: str, matrix: Float[np.ndarray, "O C"], bias: Float[np.ndarray, " O"] | None, name: str
    ) -> str:
        """Multiply rows by the transpose of a matrix, and add a bias.

        Args:
            rows: The name of the rows.
            matrix: A row for each output channel.
            bias: A number for each output channel.
            name: The name of the matrix in the graph.
        """
        graph = self.graph
        added = [] if bias is None else [graph.constant(bias, f"{name}.bias")]
        if not self._int8:
            return graph.add("Gemm", rows, graph.constant(matrix, name), *added, transB=1)
        rounded, scales = rounded_rows(matrix)
        whole, scale, zero = graph.add_many("DynamicQuantizeLinear", 3, rows)
        matrix_name = graph.constant(np.ascontiguousarray(rounded.T), name)
        no_offset = graph.constant(np.array(0, np.int8), "int8_zero")
        products = graph.add("Cast", graph.add("MatMulInteger", whole, matrix_name, zero, no_offset), to=1)
        factor = graph.add("Mul", scale, graph.constant(scales, f"{name}.scales"))
        result = graph.add("Mul", products, factor)
        return graph.add("Add", result, *added) if added else result

    def norm(self, rows: str, name: str) -> str:
        """Apply a LayerNorm of the folder."""
        return self.graph.add(
            "LayerNormalization",
            rows,
            self.weight(f"{name}.weight"),
            self.weight(f"{name}.bias"),
            epsilon=self.tower.eps,
        )

    def activated(self, rows: str) -> str:
        """Apply the activation of the tower."""
        match self.tower.activation:
            case "gelu":
                return self.graph.add("com.microsoft::Gelu", rows)
            case "gelu_pytorch_tanh":
                return self.graph.add("com.microsoft::FastGelu", rows)
        return self.graph.add("com.microsoft::QuickGelu", rows, alpha=_QUICK)

    def layers(self, rows: str, shape: str, prefix: str, *, causal: bool) -> str:
        """Apply the layers of the tower: attention and two linear layers, each added to its input.

        Args:
            rows: The tokens as rows.
            shape: The shape of the tokens of a batch, (N, L, C).
            prefix: The part of the names of the weights before the number of a layer.
            causal: Whether a token attends to itself and earlier tokens only.
        """
        for number in range(self.tower.layers):
            layer = f"{prefix}.{number}"
            normed = self.norm(rows, f"{layer}.layer_norm1")
            parts = [f"{layer}.self_attn.{part}_proj" for part in "qkv"]
            matrix = np.concatenate([self.array(f"{part}.weight") for part in parts])
            bias = np.concatenate([self.array(f"{part}.bias") for part in parts])
            joined = self.product(normed, matrix, bias, f"{layer}.self_attn.qkv")
            queries, keys, values = (
                self.graph.add("Reshape", part, shape)
                for part in self.graph.add_many("Split", 3, joined, self.graph.ints(*[self.tower.width] * 3), axis=1)
            )
            rows = self.graph.add(
                "Add", rows, self.attended(queries, keys, values, f"{layer}.self_attn.out_proj", causal)
            )
            rows = self.graph.add("Add", rows, self.mlp(self.norm(rows, f"{layer}.layer_norm2"), f"{layer}.mlp"))
        return rows

    def attended(self, queries: str, keys: str, values: str, output: str, causal: bool = False, mask: str = "") -> str:
        """Return the attention of tokens (N, L, C) to others, as rows, after the linear layer `output`.

        Args:
            queries: The tokens that attend.
            keys: The keys of the tokens that they attend to.
            values: The values of these tokens.
            output: The name of the linear layer.
            causal: Whether a token attends to itself and earlier tokens only.
            mask: 1 for each token that is attended to, and 0 for padding, (N, L). Default: no padding.
        """
        mixed = self.graph.add(
            "com.microsoft::MultiHeadAttention",
            queries,
            keys,
            values,
            *(["", mask] if mask else []),
            num_heads=self._heads,
            unidirectional=int(causal),
        )
        return self.linear(self.as_rows(mixed), output)

    def pooled(self, rows: str, shape: str, prefix: str) -> str:
        """Return one vector for each image: what a learned token attends to (the head of SigLIP).

        Args:
            rows: The tokens as rows.
            shape: The shape of the tokens of a batch, (N, L, C).
            prefix: The part of the names of the weights before those of the head.
        """
        graph, width = self.graph, self.tower.width
        matrix, bias = self.array(f"{prefix}.attention.in_proj_weight"), self.array(f"{prefix}.attention.in_proj_bias")
        probe = self.array(f"{prefix}.probe").reshape(1, width)
        query = graph.constant((probe @ matrix[:width].T + bias[:width]).astype(np.float32)[None], f"{prefix}.query")
        sizes = graph.add(
            "Concat", graph.add("Slice", shape, graph.ints(0), graph.ints(1)), graph.ints(1, width), axis=0
        )
        queries = graph.add("Expand", query, sizes)
        keys, values = (
            graph.add("Reshape", self.product(rows, matrix[part], bias[part], f"{prefix}.{name}"), shape)
            for name, part in (("keys", slice(width, 2 * width)), ("values", slice(2 * width, None)))
        )
        attended = self.attended(queries, keys, values, f"{prefix}.attention.out_proj")
        return graph.add("Add", attended, self.mlp(self.norm(attended, f"{prefix}.layernorm"), f"{prefix}.mlp"))

    def mlp(self, rows: str, name: str) -> str:
        """Apply two linear layers with the activation between them."""
        return self.linear(self.activated(self.linear(rows, f"{name}.fc1")), f"{name}.fc2")

    def as_rows(self, tokens: str) -> str:
        """Return the tokens of a batch as rows."""
        return self.graph.add("Reshape", tokens, self.graph.ints(-1, self.tower.width))


def rounded_rows(matrix: Float[np.ndarray, "O C"]) -> tuple[NDArray[np.int8], Float[np.ndarray, " O"]]:
    """Return a matrix in eight bits, and the scale of each row: matrix ≈ rounded · scale.

    >>> rounded, scales = rounded_rows(np.float32([[1.27, -0.5], [0, 0]]))
    >>> rounded.tolist()
    [[127, -50], [0, 0]]
    """
    scales = np.abs(matrix).max(1) / 127
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


# ---------------------------------------------------------------- weights


def shapes(kind: str, text: Mapping[str, Any], vision: Mapping[str, Any], width: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight that the towers read, by name.

    Args:
        kind: "clip" or "siglip".
        text: The config of the texts.
        vision: The config of the images.
        width: The width of the joint space.
    """
    words, images, patch = text["hidden_size"], vision["hidden_size"], vision["patch_size"]
    is_clip = kind == "clip"
    num_tokens = (vision["image_size"] // patch) ** 2 + is_clip
    found: dict[str, tuple[int, ...]] = {
        "text_model.embeddings.token_embedding.weight": (text["vocab_size"], words),
        "text_model.embeddings.position_embedding.weight": (text["max_position_embeddings"], words),
        "vision_model.embeddings.patch_embedding.weight": (images, 3, patch, patch),
        "vision_model.embeddings.position_embedding.weight": (num_tokens, images),
        **_norm("text_model.final_layer_norm", words),
        **_norm("vision_model.post_layernorm", images),
        **_layer_shapes("text_model.encoder.layers", text),
        **_layer_shapes("vision_model.encoder.layers", vision),
    }
    if is_clip:
        return found | {
            "vision_model.embeddings.class_embedding": (images,),
            **_norm("vision_model.pre_layrnorm", images),
            "visual_projection.weight": (width, images),
            "text_projection.weight": (width, words),
        }
    head = "vision_model.head"
    return found | {
        "vision_model.embeddings.patch_embedding.bias": (images,),
        f"{head}.probe": (1, 1, images),
        f"{head}.attention.in_proj_weight": (3 * images, images),
        f"{head}.attention.in_proj_bias": (3 * images,),
        **_linear(f"{head}.attention.out_proj", images, images),
        **_norm(f"{head}.layernorm", images),
        **_mlp(f"{head}.mlp", vision),
        **_linear("text_model.head", words, width),
    }


def _layer_shapes(prefix: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, found = config["hidden_size"], dict[str, tuple[int, ...]]()
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}.{number}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= _linear(f"{layer}.self_attn.{part}", width, width)
        found |= _norm(f"{layer}.layer_norm1", width) | _norm(f"{layer}.layer_norm2", width)
        found |= _mlp(f"{layer}.mlp", config)
    return found


def _mlp(name: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    return _linear(f"{name}.fc1", width, inner) | _linear(f"{name}.fc2", inner, width)


def _linear(name: str, width_in: int, width_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width_out, width_in), f"{name}.bias": (width_out,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


# ---------------------------------------------------------------- images


def image_tower(
    kind: str, config: Mapping[str, Any], weights: Weights, preprocessing: Preprocessing, *, int8: bool = False
) -> Graph:
    """Return the graph from prepared pixels, `pixels` (N, 3, H, W), to `vectors` in the joint space.

    Args:
        kind: "clip" or "siglip".
        config: The config of the images.
        weights: The weights of the folder.
        preprocessing: How pixels are normalised.
        int8: Round the weights to eight bits.
    """
    build = Builder(weights, Tower.read(config), int8)
    graph, size, patch, width = build.graph, config["image_size"], config["patch_size"], config["hidden_size"]
    embeddings, layers = "vision_model.embeddings", "vision_model.encoder.layers"
    per_side = size // patch
    num_tokens = per_side**2 + (kind == "clip")
    pixels = graph.add("Cast", graph.input("pixels", "uint8", ["N", 3, size, size]), to=1)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    pixels = graph.add("Sub", graph.add("Mul", pixels, build.scalar(preprocessing.scale)), graph.constant(mean, "mean"))
    pixels = graph.add("Div", pixels, graph.constant(std, "std"))
    # A convolution whose stride is its size: cut the patches out, and multiply them by a matrix.
    kernel = build.array(f"{embeddings}.patch_embedding.weight").reshape(width, -1)
    cut = graph.add("Reshape", pixels, graph.ints(-1, 3, per_side, patch, per_side, patch))
    cut = graph.add("Transpose", cut, perm=[0, 2, 4, 1, 3, 5])
    bias = build.array(f"{embeddings}.patch_embedding.bias") if kind == "siglip" else None
    rows = build.product(
        graph.add("Reshape", cut, graph.ints(-1, 3 * patch * patch)), kernel, bias, f"{embeddings}.patch_embedding"
    )
    tokens = graph.add("Reshape", rows, graph.ints(-1, per_side**2, width))
    if kind == "clip":
        number = graph.add("Slice", graph.add("Shape", tokens), graph.ints(0), graph.ints(1))
        shape = graph.add("Concat", number, graph.ints(1, width), axis=0)
        first = build.array(f"{embeddings}.class_embedding").reshape(1, 1, width)
        first_tokens = graph.add("Expand", graph.constant(first, f"{embeddings}.class_embedding"), shape)
        tokens = graph.add("Concat", first_tokens, tokens, axis=1)
    tokens = graph.add("Add", tokens, build.weight(f"{embeddings}.position_embedding.weight"))
    rows = build.as_rows(tokens)
    if kind == "clip":
        rows = build.norm(rows, "vision_model.pre_layrnorm")  # the name is misspelt in every CLIP
    rows = build.layers(rows, graph.ints(-1, num_tokens, width), layers, causal=False)
    if kind == "clip":
        tokens = graph.add("Reshape", rows, graph.ints(-1, num_tokens, width))
        first_rows = graph.add("Gather", tokens, graph.constant(np.array(0), "first"), axis=1)
        pooled = build.norm(first_rows, "vision_model.post_layernorm")
        graph.output("vectors", build.linear(pooled, "visual_projection", bias=False), ["N", "E"])
    else:
        rows = build.norm(rows, "vision_model.post_layernorm")
        shape = graph.add("Shape", tokens)
        graph.output("vectors", build.pooled(rows, shape, "vision_model.head"), ["N", "E"])
    return graph


# ---------------------------------------------------------------- texts


def text_tower(kind: str, config: Mapping[str, Any], weights: Weights, *, int8: bool = False) -> Graph:
    """Return the graph from `tokens` (N, L) to `words` (N, L, C) and `sentences` in the joint space.

    A text of CLIP is pooled at its last token, so the graph has a second input: the `last` position of each text.

    Args:
        kind: "clip" or "siglip".
        config: The config of the texts.
        weights: The weights of the folder.
        int8: Round the weights to eight bits.
    """
    build = Builder(weights, Tower.read(config), int8)
    graph, width = build.graph, config["hidden_size"]
    ids = graph.input("tokens", "int64", ["N", "L"])
    shape = graph.add("Concat", graph.add("Shape", ids), graph.ints(width), axis=0)
    tokens = graph.add("Gather", build.weight("text_model.embeddings.token_embedding.weight"), ids)
    length = graph.add("Slice", shape, graph.ints(1), graph.ints(2))
    positions = graph.add(
        "Slice", build.weight("text_model.embeddings.position_embedding.weight"), graph.ints(0), length, graph.ints(0)
    )
    rows = build.as_rows(graph.add("Add", tokens, positions))
    rows = build.layers(rows, shape, "text_model.encoder.layers", causal=kind == "clip")
    words = graph.add("Reshape", build.norm(rows, "text_model.final_layer_norm"), shape)
    if kind == "clip":
        last = graph.add("Unsqueeze", graph.input("last", "int64", ["N"]), graph.ints(1))
        pooled = graph.add("GatherND", words, last, batch_dims=1)
        sentences = build.linear(pooled, "text_projection", bias=False)
    else:
        pooled = graph.add("Gather", words, graph.constant(np.array(-1), "last"), axis=1)
        sentences = build.linear(pooled, "text_model.head")
    graph.output("words", words, ["N", "L", width])
    graph.output("sentences", sentences, ["N", "E"])
    return graph
