"""The common parts of MSC and GMMFormer v2. Their own tests have the rest."""

from typing import Any

import pytest
import torch

from midreel.errors import BadBatch
from midreel.methods.batches import QueryBatch
from midreel.methods.gmmformer_v2 import GMMFormerV2, GMMFormerV2Config
from midreel.methods.msc import MSC, MSCConfig

SMALL: dict[str, Any] = {"video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9}


def test_both_have_the_same_network() -> None:
    msc, other = MSC(MSCConfig(**SMALL)), GMMFormerV2(GMMFormerV2Config(**SMALL))
    shapes = [{name: weight.shape for name, weight in method.state_dict().items()} for method in (msc, other)]
    assert shapes[0] == shapes[1]
    other.load_state_dict(msc.state_dict())
    words = QueryBatch(words=torch.randn(3, 5, 6), mask=torch.ones(3, 5, dtype=torch.bool))
    assert msc.eval().encode_queries(words)["clip"].equal(other.eval().encode_queries(words)["clip"])


def test_released_variants_truncate_queries_and_the_paper_does_not() -> None:
    words = torch.randn(2, 12, 6)
    long = QueryBatch(words=words, mask=torch.ones(2, 12, dtype=torch.bool))
    for method in (MSC(MSCConfig(**SMALL, variant="released")), GMMFormerV2(GMMFormerV2Config(**SMALL))):
        assert method.truncated(long).words.equal(words[:, :9])
        assert method.encode_queries(long)["clip"].shape == (2, 8)
    with pytest.raises(BadBatch, match="12 words, expected at most 9"):
        MSC(MSCConfig(**SMALL)).truncated(long)


def test_the_teacher_of_a_truncated_query_is_its_last_word() -> None:
    method = MSC(MSCConfig(**SMALL, variant="released")).eval()
    long = QueryBatch(words=torch.randn(3, 12, 6), mask=torch.ones(3, 12, dtype=torch.bool))
    pooled = torch.randn(3, 8)
    assert method.tcpl_losses(pooled, long) == method.tcpl_losses(pooled, long.first(9))
