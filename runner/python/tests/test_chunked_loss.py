"""Tests of the loss in chunks beside the plain one. Needs torch and transformers."""

import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig
except ImportError as error:
    raise unittest.SkipTest(f"torch and transformers are needed: {error}") from error

from dtrain_engines import chunked_loss  # noqa: E402

VOCAB, CONTEXT = 96, 20
NONE = {"bos_token_id": None, "eos_token_id": None}


def models() -> dict[str, object]:
    llama = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    return {
        "llama": LlamaConfig(vocab_size=VOCAB, **llama, **NONE),
        "tied": LlamaConfig(vocab_size=VOCAB, tie_word_embeddings=True, **llama, **NONE),
        "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, **NONE),
    }


class ChunkedLoss(unittest.TestCase):
    def test_the_loss_in_chunks_and_its_gradients_are_those_of_the_plain_loss(self) -> None:
        for name, config in models().items():
            with self.subTest(name):
                torch.manual_seed(1)
                model = AutoModelForCausalLM.from_config(config).float()
                inputs, targets = torch.randint(VOCAB, (2, 3, CONTEXT))
                targets[1:, 7:] = chunked_loss.IGNORED
                plain = chunked_loss.loss_sum(model, inputs, targets)
                gradients = torch.autograd.grad(plain, list(model.parameters()))
                chunked_loss.chunk_loss(model)
                chunked = chunked_loss.loss_sum(model, inputs, targets)
                self.assertLess(abs(chunked.item() / plain.item() - 1), 1e-5)
                for wanted, found in zip(gradients, torch.autograd.grad(chunked, list(model.parameters()))):
                    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    def test_logits_are_never_whole(self) -> None:
        model = AutoModelForCausalLM.from_config(models()["llama"]).float()
        chunked_loss.chunk_loss(model)
        inputs, targets = torch.randint(VOCAB, (2, 3, CONTEXT))
        rows = []

        def counted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            rows.append(len(logits))
            return sums(logits, targets)

        sums = chunked_loss.cross_entropy_sum
        with mock.patch.object(chunked_loss, "cross_entropy_sum", counted):
            chunked_loss.loss_sum(model, inputs, targets).backward()
        self.assertEqual(sum(rows), 2 * 3 * CONTEXT, "each row in the forward pass, and again in the backward pass")
        self.assertLessEqual(max(rows), -(-3 * CONTEXT // chunked_loss.CHUNKS))


if __name__ == "__main__":
    unittest.main()
