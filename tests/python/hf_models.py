"""What the tests of the model for transformers share."""

import torch

import gated_sparse_attention as gsa


def load(folder, **options):
    import transformers  # which a test may do without

    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def random_tokens(batch=2, length=96, vocabulary=131):
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def stepwise(model, x, prefix, step):
    """Logits of x by a prefix and then `step` tokens at a time over a cache."""
    cache, parts = gsa.huggingface.GatedSparseCache(), []
    with torch.no_grad():
        for a, b in [(0, prefix), *((i, min(i + step, x.size(1))) for i in range(prefix, x.size(1), step))]:
            parts.append(model(x[:, a:b], past_key_values=cache).logits)
    assert cache.get_seq_length() == x.size(1)
    return torch.cat(parts, 1)
