"""The checkpoints of released codes: for each method its tensors, sizes and settings, in the file and in midreel.

`released` imports the files. Each family is a table, so that a test can compare it with the list of names in a release.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NUM_WINDOWS = 8  # of GMMFormer v2
NUM_FIRST_WINDOWS = 4  # of the first GMMFormer

Names = dict[str, str]
# Where a file stores a setting: a name, or a name and a position in the list of that name.
Place = tuple[str] | tuple[str, int]
# The setting that is the length of a tensor's axis: the tensor and the axis.
Sizes = dict[str, tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A released code whose checkpoints can be imported.

    Attributes:
        method: the name of the method in midreel.
        title: the name of the method in messages.
        names: the name of each weight in the file, and in midreel.
        sizes: the tensor and the axis whose length is a setting.
        places: where the file stores each setting.
        fusion: the stored weights of the clip branch and the frame branch in the score, if midreel's is `frame_weight`.
        fixed: settings of all checkpoints of the family, unless `choices` says otherwise.
        choices: the settings that follow from a value of a stored setting.
        known: stored settings, and the values that midreel can train with. Another value is a remark of the import.
        marks: stored settings that only this one of several families with the same names has.
        has_options: whether the released code writes an opt.json beside the checkpoint.
        option_sizes: the options in that opt.json that the shapes of the tensors repeat, and their settings.
    """

    method: str
    title: str
    names: Mapping[str, str]
    sizes: Mapping[str, tuple[str, int]]
    places: Mapping[str, Place]
    fusion: tuple[str, str] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Mapping[Any, Mapping[str, Any]]] = field(default_factory=dict)
    known: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    has_options: bool = False
    option_sizes: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- names in the file (there) and in midreel (here)


def _both(there: str, here: str) -> Names:
    return {f"{there}.{part}": f"{here}.{part}" for part in ("weight", "bias")}


def _joined(tables: Iterable[Mapping[str, str]]) -> Names:
    return {there: here for table in tables for there, here in table.items()}


def _position(there: str, here: str) -> Names:
    return {
        f"{there}.position_embeddings.weight": f"{here}.table.weight",
        **_both(f"{there}.LayerNorm", f"{here}.norm"),
    }


def _projection(there: str, here: str) -> Names:
    return _both(f"{there}.LayerNorm", f"{here}.norm") | _both(f"{there}.net.1", f"{here}.linear")


def _heads(there: str, here: str) -> Names:
    return _joined(_both(f"{there}.self.{name}", f"{here}.{name}") for name in ("query", "key", "value"))


def _projected_attention(there: str, here: str) -> Names:
    """The block without a feed-forward network: `nn.attention.ProjectedAttention`."""
    return {
        **_heads(there, here),
        **_both(f"{there}.output.dense", f"{here}.output"),
        **_both(f"{there}.output.LayerNorm", f"{here}.norm"),
    }


def _attention(there: str, here: str) -> Names:
    """The block with a feed-forward network: `nn.attention.AttentionBlock`."""
    parts = {"output.layer1": "expand", "output.layer2": "contract", "norm1": "norm1", "norm2": "norm2"}
    return _heads(there, here) | _joined(_both(f"{there}.{old}", f"{here}.{new}") for old, new in parts.items())


def _mixture(there: str, here: str) -> Names:
    return {
        **_joined(_attention(f"{there}.attn{k}", f"{here}.blocks.{k}") for k in range(NUM_WINDOWS)),
        **_attention(f"{there}.ca", f"{here}.summary"),
        **_both(f"{there}.layer1", f"{here}.mix_hidden"),
        **_both(f"{there}.layer2", f"{here}.mix_output"),
    }


def _mean(there: str, here: str) -> Names:
    return _joined(_projected_attention(f"{there}.attn{k}", f"{here}.blocks.{k}") for k in range(NUM_FIRST_WINDOWS))


def _inputs(names: Iterable[str]) -> Names:
    """The projections and positions of encoders with the same names in the file and in midreel."""
    return _joined(
        _position(f"{name}_pos_embed", f"{name}.position") | _projection(f"{name}_input_proj", f"{name}.project")
        for name in names
    )


GMMFORMER_V2_NAMES = {
    "weight_token": "weight_token",
    **_inputs(("query", "clip", "frame")),
    **_attention("query_encoder", "query.block"),
    "modular_vector_mapping.weight": "query.pool.score.weight",
    **_mixture("clip_encoder", "clip.mixture"),
    **_mixture("frame_encoder_1", "frame.mixture"),
}
MSC_NAMES = GMMFORMER_V2_NAMES | _both("vproj_clip", "alignment_projection")
GMMFORMER_NAMES = {
    **_inputs(("query", "clip", "frame")),
    **_projected_attention("query_encoder", "query.block"),
    "modular_vector_mapping.weight": "query.pool.score.weight",
    # The blocks are numbered differently in the two branches.
    **_mean("clip_encoder", "clip.mixtures.0"),
    **_mean("clip_encoder_2", "clip.mixtures.1"),
    **_mean("frame_encoder_1", "frame.mixtures.0"),
    **_mean("frame_encoder_2", "frame.mixtures.1"),
    "modular_vector_mapping_2.weight": "frame.pool.score.weight",
}
MS_SL_NAMES = {
    **_inputs(("query", "clip", "frame")),
    **_joined(_projected_attention(f"{name}_encoder", f"{name}.block") for name in ("query", "clip", "frame")),
    "modular_vector_mapping.weight": "query.pool.score.weight",
    "mapping_linear.0.weight": "frame_key.weight",
    "mapping_linear.1.weight": "frame_value.weight",
}


def _dl_dkd_branch(prefix: str, video: str, output: str, here: str) -> Names:
    """A branch of DL-DKD.

    Args:
        prefix: the start of the names of this branch in the file.
        video: the name of the encoder of frames in the file.
        output: the name of the linear layer after it in the file.
        here: the name of the branch in midreel.
    """
    encoders = (("query", "query"), (video, "frame"))
    return {
        **_joined(
            _position(f"{prefix}{there}_pos_embed", f"{here}_{name}.position")
            | _projection(f"{prefix}{there}_input_proj", f"{here}_{name}.project")
            | _projected_attention(f"{prefix}{there}_encoder", f"{here}_{name}.block")
            for there, name in encoders
        ),
        f"{prefix}modular_vector_mapping.weight": f"{here}_query.pool.score.weight",
        **_both(f"{prefix}{output}", f"{here}_output"),
    }


# The projection of the queries of branch A is in the file, but the release uses that of branch B for both.
DL_DKD_NAMES = {
    **_dl_dkd_branch("B_", "frame", "mapping_linear", "inheritance"),
    **_dl_dkd_branch("A_", "frame", "mapping_linear", "exploration"),
}
DL_DKD_PLUS_PLUS_NAMES = {
    **_dl_dkd_branch("", "visual", "out_mapping_linear", "inheritance"),
    **_dl_dkd_branch("exp_", "visual", "out_mapping_linear", "exploration"),
}
AMDNET_NAMES = {
    **_position("clip_pos_embed", "clip.position"),
    **_projection("query_input_proj", "query"),
    **_projection("clip_input_proj", "clip.project"),
    **_projected_attention("clip_encoder.attn0", "clip.attention0"),
    **_projected_attention("clip_encoder.attn1", "clip.attention1"),
    **_both("clip_encoder.clip2video.layernorm", "clip.video_norm"),
    **_both("clip_encoder.clip2video.fc_out1", "clip.video_output"),
    **_both("clip_encoder.fc_gauss", "clip.spans"),
}


# ---------------------------------------------------------------- sizes and places


def _sizes(video: str, query: str, frames: str) -> Sizes:
    """Return the sizes by the names of the encoders of videos, queries and frames."""
    return {
        "video_width": (f"{video}_input_proj.net.1.weight", 1),
        "text_width": (f"{query}_input_proj.net.1.weight", 1),
        "max_words": (f"{query}_pos_embed.position_embeddings.weight", 0),
        "num_frames": (f"{frames}_pos_embed.position_embeddings.weight", 0),
        "width": (f"{video}_input_proj.net.1.weight", 0),
    }


# The windows of the mixture have these lengths. The positions are 128 in both branches.
MIXTURE_SIZES: Sizes = {
    **_sizes("clip", "query", "frame"),
    "num_frames": ("frame_encoder_1.layer2.weight", 0),
    "num_clips": ("clip_encoder.layer2.weight", 0),
}
AMDNET_SIZES: Sizes = {name: size for name, size in _sizes("clip", "query", "clip").items() if name != "max_words"}

TRAINING: dict[str, Place] = {
    "num_heads": ("n_heads",),
    "input_dropout": ("input_drop",),
    "dropout": ("drop",),
    "margin": ("margin",),
    "hard_from_epoch": ("hard_negative_start_epoch",),
    "hard_pool": ("hard_pool_size",),
}
TWO_BRANCHES: dict[str, Place] = {
    **TRAINING,
    "clip_nce_weight": ("loss_factor", 0),
    "frame_nce_weight": ("loss_factor", 1),
}
DIVERSITY: dict[str, Place] = {
    "diversity_weight": ("loss_factor", 2),
    "diversity_shift": ("neg_factor", 0),
    "diversity_scale": ("neg_factor", 1),
}
NUM_CLIPS: dict[str, Place] = {"num_clips": ("map_size",)}
FUSION = ("clip_scale_w", "frame_scale_w")
OPTION_SIZES = {"q_feat_size": "text_width", "max_desc_l": "max_words", "max_ctx_l": "num_frames"}
NO_DECAY = {"distillation_decay": 1.0}


# ---------------------------------------------------------------- families

MSC = Family(
    method="msc",
    title="MSC",
    names=MSC_NAMES,
    sizes=MIXTURE_SIZES,
    places={
        **TWO_BRANCHES,
        "temperature": ("sft_factor",),
        "similarity_threshold": ("sim_thr",),
        "cbva_weight": ("vl_coef",),
        "tcpl_distance_weight": ("rkd_d_coef",),
        "tcpl_angle_weight": ("rkd_a_coef",),
    },
    fusion=FUSION,
    fixed={"variant": "released"},  # it has the projection of CBVA, which only training uses
)
GMMFORMER_V2 = Family(
    method="gmmformer_v2",
    title="GMMFormer v2",
    names=GMMFORMER_V2_NAMES,
    sizes=MIXTURE_SIZES,
    places={
        **TWO_BRANCHES,
        **DIVERSITY,
        "temperature": ("sft_factor",),
        "matching_weight": ("loss_factor", 3),
        "diversity_focus": ("neg_factor", 2),
    },
    fusion=FUSION,
)
GMMFORMER = Family(
    method="gmmformer",
    title="GMMFormer",
    names=GMMFORMER_NAMES,
    sizes=_sizes("clip", "query", "frame"),
    places={**TWO_BRANCHES, **DIVERSITY, **NUM_CLIPS},
    fusion=FUSION,
)
MS_SL = Family(
    method="ms_sl",
    title="MS-SL",
    names=MS_SL_NAMES,
    sizes=_sizes("clip", "query", "frame"),
    places={**TRAINING, **NUM_CLIPS},  # the weights of its losses are constants of the code
    fusion=FUSION,
    has_options=True,
    option_sizes={**OPTION_SIZES, "hidden_size": "width"},
)
BGM_NET = Family(
    method="bgm_net",
    title="BGM-Net",
    names=MS_SL_NAMES,
    sizes=_sizes("clip", "query", "frame"),
    places={**TRAINING, **NUM_CLIPS, "matching_from_epoch": ("use_matcher_start_epoch",)},
    fusion=FUSION,
    marks=("use_matcher", "smp_rate", "use_matcher_start_epoch"),
    has_options=True,
    option_sizes={**OPTION_SIZES, "hidden_size": "width"},
)
# In DL-DKD the weights of the branches are constants of the evaluation. The stored clip_scale_w has no effect.
DL_DKD = Family(
    method="dl_dkd",
    title="DL-DKD",
    names=DL_DKD_NAMES,
    sizes=_sizes("B_frame", "B_query", "B_frame"),
    places={
        **TRAINING,
        "distillation_weight": ("loss_scale_weight",),
        "distillation_decay": ("exponential_k",),
    },
    fixed={"objective": "iccv"},
    choices={"decay_way": {0: NO_DECAY}, "use_clip": {False: {"distillation_weight": 0.0}}},
    known={"decay_way": (0, 1)},
    has_options=True,
    option_sizes={**OPTION_SIZES, "B_hidden_size": "width"},
)
DL_DKD_PLUS_PLUS = Family(
    method="dl_dkd",
    title="DL-DKD++",
    names=DL_DKD_PLUS_PLUS_NAMES,
    sizes=_sizes("visual", "query", "visual"),
    places={
        **TRAINING,
        "inheritance_nce_weight": ("inher_nce_weight",),
        "exploration_nce_weight": ("explore_nce_weight",),
        "distillation_weight": ("kl_intra_weight",),
        "distillation_decay": ("exponential_k",),
        "hard_share": ("alpha",),
        "truth_share": ("belta",),
    },
    fixed={"objective": "plus_plus"},
    choices={
        "label_style": {"hard": {"objective": "hard_labels"}},
        "distill_loss_decay": {None: NO_DECAY, "None": NO_DECAY},
    },
    known={
        "distill_loss_decay": (None, "None", "exp"),
        "alpha_decay": ("sigmoid",),
        "belta_decay": ("sigmoid",),
        "selfDistil_sigmoid_k": (800,),
    },
    has_options=True,
    option_sizes={**OPTION_SIZES, "inheritance_hidden": "width"},
)
AMDNET = Family(
    method="amdnet",
    title="AMDNet",
    names=AMDNET_NAMES,
    sizes=AMDNET_SIZES,
    places={**TRAINING, **NUM_CLIPS, "nce_weight": ("loss_factor", 0), "diversity_weight": ("loss_factor", 1)},
)

# Of two families with the same names, the first is assumed for a file that does not tell.
FAMILIES = (MSC, GMMFORMER_V2, GMMFORMER, MS_SL, BGM_NET, DL_DKD, DL_DKD_PLUS_PLUS, AMDNET)
TITLES = ", ".join(family.title for family in FAMILIES[:-1]) + f" or {FAMILIES[-1].title}"
