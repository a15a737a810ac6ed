"""The program's byte tokenizer for transformers: `gsa tokenize` without options leaves it in a folder as a
tokenizer_config.json that says "tokenizer_class": "GsaByteTokenizer"."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import TokenizersBackend

BOS, EOS = 256, 257


def _characters() -> list[str]:
    """What byte-level tokenizers write for the bytes 0 .. 255: themselves where they print, else from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


class GsaByteTokenizer(TokenizersBackend):
    """Ids 0 .. 255 are the bytes of UTF-8, 256 begins and 257 ends a document."""

    vocab_files_names: dict[str, str] = {}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, bos_token: str = "<s>", eos_token: str = "</s>", **kwargs):
        bos_token, eos_token = str(bos_token), str(eos_token)
        alphabet = {character: byte for byte, character in enumerate(_characters())}
        self._tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (bos_token, eos_token)])
        self._tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos_token} $A", pair=f"{bos_token} $A $B", special_tokens=[(bos_token, BOS), (eos_token, EOS)]
        )
        # As in the program, a mark's name in a text is text.
        super().__init__(bos_token=bos_token, eos_token=eos_token, **{"split_special_tokens": True} | kwargs)

    def _save_pretrained(self, save_directory, file_names, legacy_format=None, filename_prefix=None):
        return file_names  # tokenizer_config.json says it all; the program would take a tokenizer.json for another one
