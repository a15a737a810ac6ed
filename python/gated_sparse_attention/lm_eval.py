"""lm-eval (lm-evaluation-harness) on folders of ours: its own program, after this package is imported.

    python -m gated_sparse_attention.lm_eval --model hf --model_args pretrained=folder --tasks hellaswag

Releases up to 0.4.13 import nothing of the user's before they load a model, so ``lm_eval`` by itself does not know
model_type "gated_sparse_attention".
"""

from . import huggingface  # noqa: F401, registers the model; says so where transformers is missing


def main() -> None:
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        raise SystemExit(
            "gated_sparse_attention.lm_eval: expected the package lm_eval (pip install 'lm-eval[hf]'), got none"
        ) from None
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
