"""Tiny text models with random weights: a Llama for reconstruction, a BERT text tower, and their tokenizers."""

import json
from pathlib import Path

from tiny_clip import byte_letters

WIDTH = 32


def make_tiny_llama(folder: Path, *, seed: int = 0) -> Path:
    """Write a two-layer Llama over bytes, whose tokenizer prepends a start token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = _save_byte_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=size - 2,
        eos_token_id=size - 1,
        pad_token_id=size - 1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_tiny_bert(folder: Path, *, seed: int = 0, context: int = 16) -> Path:
    """Write a three-layer BERT over the words of the test captions."""
    import torch
    from transformers import BertConfig, BertModel

    size = _save_word_tokenizer(folder, context)
    config = BertConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=context,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertModel(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder)
    return folder


def _save_byte_tokenizer(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*byte_letters(), "<s>", "</s>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return len(pieces)


def _save_word_tokenizer(folder: Path, context: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
    words = [
        "a",
        "the",
        "red",
        "green",
        "blue",
        "yellow",
        "square",
        "circle",
        "left",
        "right",
        "on",
        "of",
        "with",
        "and",
        "picture",
    ]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    unique = list(dict.fromkeys(pieces))
    (folder / "vocab.txt").write_text("\n".join(unique) + "\n", encoding="utf-8")
    from transformers import BertTokenizerFast

    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": context, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    BertTokenizerFast(
        vocab={piece: number for number, piece in enumerate(unique)}, model_max_length=context
    ).save_pretrained(folder)
    return len(unique)
