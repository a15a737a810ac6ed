"""Small layers and models that the tests share."""

import gated_sparse_attention as gsa


def attention(system="gsa", **changes):
    config = gsa.AttentionConfig(
        d_model=48, heads=4, kv_heads=2, head_size=16, indexer=gsa.IndexerConfig(heads=3, head_size=8),
        budget=gsa.BudgetConfig("inverse", 12, 4, 24), init_std=0.15, gate_init=0.6, gate_init_std=0.1,
    ).apply(system)  # fmt: skip
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = config
        for parent in parents:
            target = getattr(target, parent)
        assert hasattr(target, name), path
        setattr(target, name, value)
    return config


def model(system="gsa", extend=1, tied=False, layers=3, index_layers=(), **changes):
    return gsa.ModelConfig(
        vocab_size=131, layers=layers, intermediate=88, max_positions=64, tie_embeddings=tied,
        attention=attention(system, **changes), index_layers=list(index_layers),
    ).extend(extend)  # fmt: skip


# Names of the cases say which switch they turn.
CASES = {
    "standard": dict(system="standard"),
    "standard-tied-yarn": dict(system="standard", tied=True, extend=4),
    "sparse-only": dict(system="sparse-only"),
    "gated-only": dict(system="gated-only"),
    "gsa": dict(),
    "gsa-tied-yarn": dict(tied=True, extend=4),
    "gsa-attention-factor": dict(extend=2, rope__yarn__attention_factor=1.3),
    "proportional": dict(budget__mode="proportional"),
    "fixed": dict(budget__mode="fixed"),
    "relu": dict(indexer__form="relu", indexer__temperature__value=1.0),
    "headwise": dict(value_gate="headwise", output_gate="headwise"),
    "output-gate-alone": dict(value_gate="none"),
    "value-gate-alone": dict(output_gate="none"),
    "half-rotated": dict(indexer__rope_fraction=0.5),
    "no-positions": dict(indexer__rope_fraction=0.0),
    "temperature-learned": dict(indexer__temperature__learned=True),
    "biases": dict(qkv_bias=True),
    "query-key-norms": dict(qk_norm=True, tied=True),
    "biases-and-norms": dict(qkv_bias=True, qk_norm=True, system="gated-only"),
    "standard-biases": dict(system="standard", qkv_bias=True),
    "standard-norms": dict(system="standard", qk_norm=True, head_size=24),
    "standard-biases-and-norms": dict(system="standard", qkv_bias=True, qk_norm=True),
    "sparse-only-norms": dict(system="sparse-only", qk_norm=True),
    "linear": dict(rope__linear_factor=2.0),
    "llama3": dict(rope__llama3__factor=8.0, rope__llama3__original_length=32),
    "yarn-untruncated": dict(extend=4, rope__yarn__truncate=False),
    "dense-below": dict(dense_below=90),
    "dense-below-all": dict(dense_below=1000),
    "shared": dict(layers=4, index_layers=[0, 2]),
    "shared-relu-learned": dict(layers=4, index_layers=[0, 1], indexer__form="relu", indexer__temperature__learned=True),
    "shared-dense-below": dict(index_layers=[0], dense_below=90),
}
