"""Reads GGUF files that dtrain wrote, and compares them with the folder of transformers they came from.

    python gguf_check.py FOLDER MOST FILE.gguf ...

MOST is the largest difference of a logit that weights in q8_0 may have.

Every tensor must have the values of the folder: bit by bit those that the package `gguf` encodes. Where
`llama_cpp` is installed, logits and tokens must be those of transformers too. Prints a line of JSON for each
file, and ends with 1 after the first difference.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

# Largest difference of a logit, and largest root mean square of differences as a share of that of the logits. llama.cpp
# looks GELU up in a table of f16, and rounds activations to f16 or q8_0 before products with such weights.
LIMITS = {"ALL_F32": (1e-4, 1e-3), "MOSTLY_F16": (1e-3, 5e-3), "MOSTLY_Q8_0": (float(sys.argv[2]), 5e-2)}
TEXTS = ["Hello world, it's 12345 tokens.", "  Two  spaces\n\nand\ttabs 日本語 wörld!", "model = json.loads(text)"]


def expected(folder, arch, config):
    """Returns the tensors that the file must have, in f32, named by the maps of the package `gguf`."""
    theirs = {name: tensor.float().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), layers)
    heads, out, experts = config.get("num_attention_heads"), {}, {}
    for name, values in theirs.items():
        if ".experts." in name:
            before, rest = name.split(".experts.")
            number, rest = rest.split(".", 1)
            before = before.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward") \
                if "block_sparse_moe" in before else before
            experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = values
            continue
        if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            values = values.T
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        if arch == "llama" and ".q_proj." in name or arch == "llama" and ".k_proj." in name:
            count = heads if ".q_proj." in name else config.get("num_key_value_heads", heads)
            values = values.reshape(count, 2, values.shape[0] // count // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        out[names.get_name(name, (".weight", ".bias"))] = values
    for name, each in experts.items():
        out[names.get_name(name, (".weight",))] = np.stack([each[number] for number in range(len(each))])
    return out


def compare_tensors(reader, want):
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert set(found) - {"rope_freqs.weight"} == set(want), set(found) ^ set(want)
    kinds = {}
    for name, values in want.items():
        tensor = found[name]
        shape = [int(side) for side in tensor.shape][::-1]
        assert shape == list(values.shape), (name, shape, values.shape)
        encoded = gguf.quants.quantize(np.ascontiguousarray(values), tensor.tensor_type)
        same = np.array_equal(tensor.data.view(np.uint8).ravel(), encoded.view(np.uint8).ravel())
        assert same, f"{name}: other bytes than those of the package gguf"
        back = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
        assert np.abs(back - values).max() <= 0.01 * max(1.0, np.abs(values).max()), name
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
    return kinds


class LlamaCpp:
    """A model in llama.cpp, with keys and values in f32."""

    def __init__(self, path):
        import llama_cpp as c
        self.c = c
        self.quiet = c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self.quiet, None)
        c.llama_backend_init()
        self.model = c.llama_model_load_from_file(str(path).encode(), c.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = c.llama_model_get_vocab(self.model)

    def logits(self, tokens):
        c = self.c
        params = c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 256
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        context = c.llama_init_from_model(self.model, params)
        assert context, "llama.cpp makes no context"
        batch = c.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, place, 1
            batch.seq_id[place][0], batch.logits[place] = 0, 1
        assert c.llama_decode(context, batch) == 0, "llama.cpp does not decode"
        size = c.llama_vocab_n_tokens(self.vocab)
        rows = [np.ctypeslib.as_array(c.llama_get_logits_ith(context, place), (size,)).copy() for place in range(len(tokens))]
        c.llama_free(context)
        return np.stack(rows)

    def tokens(self, text):
        data = text.encode()
        buffer = (self.c.llama_token * (len(data) + 8))()
        count = self.c.llama_tokenize(self.vocab, data, len(data), buffer, len(buffer), True, False)
        return list(buffer[:count])


def compare_logits(llama, folder):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = [(7 * place * place + 3 * place + 1) % model.config.vocab_size for place in range(min(100, model.config.max_position_embeddings))]
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0].numpy()
    found = llama.logits(tokens)
    assert found.shape == want.shape, (found.shape, want.shape)
    return {"most": float(np.abs(found - want).max()), "largest_logit": float(np.abs(want).max()),
            "mean": float(np.sqrt(np.mean((found - want) ** 2))),
            "share": float(np.sqrt(np.mean((found - want) ** 2) / np.mean(want ** 2)))}


def compare_tokens(llama, folder):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        want, found = tokenizer.encode(text).ids, llama.tokens(text)
        assert want == found, f"{text!r}: {want} in transformers, {found} in llama.cpp"
    return len(TEXTS)


def main():
    folder, failed = pathlib.Path(sys.argv[1]), False
    config = json.loads((folder / "config.json").read_text())
    for path in sys.argv[3:]:
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields[name].contents() if name in reader.fields else None
        arch, kind = field("general.architecture"), gguf.LlamaFileType(field("general.file_type")).name
        report = {"model": folder.name, "arch": arch, "type": kind}
        try:
            report["tensors"] = compare_tensors(reader, expected(folder, arch, config))
            try:
                import llama_cpp  # noqa: F401
            except ImportError:
                report["llama_cpp"] = "not installed"
            else:
                llama = LlamaCpp(path)
                report |= compare_logits(llama, folder)
                most, share = LIMITS[kind]
                assert report["most"] <= most, f"a logit differs by {report['most']}"
                assert report["share"] <= share, f"logits differ by {report['share']} of theirs"
                if field("tokenizer.ggml.model") not in ("no_vocab", "none") and (folder / "tokenizer.json").exists():
                    report["texts"] = compare_tokens(llama, folder)
        except AssertionError as error:
            report["error"], failed = str(error), True
        print(json.dumps(report), flush=True)
    sys.exit(1 if failed else 0)


main()
