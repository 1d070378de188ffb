"""Writes florence2-core/testdata/generation.jsonl: what transformers' `generate` makes of a scripted network.

    python tools/golden_generation.py

The network is the one of `florence2_core::dev::scripted`: its logits are a hash of picture, prompt and decoded tokens,
the same numbers in Python and in Rust. A line is a batch of asks with a configuration and what came of it, or a row
of scores with the distribution that transformers' warpers make of it.

`torch.topk` and `torch.sort` leave the order of equal values open, and beam search meets equal values where beams are not
live or tokens are banned. Here the lower index comes first. A case whose result depends on it has `"tie": true`.
A case that turns on the last bits of log-probabilities is not kept: it says nothing about the rules.
"""

import json
import random
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

TARGET = Path(__file__).resolve().parent.parent / "florence2-core/testdata/generation.jsonl"
CASES, DISTRIBUTIONS = 800, 120
MASK = (1 << 64) - 1
BOS, PAD, EOS, START = 0, 1, 2, 2


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def absorb(state, value):
    return mix((state + (value + 1) * 0x9E3779B97F4A7C15) & MASK)


def mix_all(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Config(PreTrainedConfig):
    model_type = "scripted"


class Scripted(PreTrainedModel, GenerationMixin):
    config_class = Config
    main_input_name = "input_ids"

    def __init__(self, config, script):
        super().__init__(config)
        self.script = script
        self.nothing = torch.nn.Parameter(torch.zeros(1))
        self.tokens = (np.arange(config.vocab_size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)

    def get_encoder(self):
        return None

    def question(self, ask):
        state = absorb(mix(self.script["seed"]), ask["image"])
        for token in ask["prompt"]:
            state = absorb(state, token)
        return state

    def row(self, question, history):
        memory = self.script["memory"]
        state = mix(question)
        for token in history if memory is None else history[-memory:]:
            state = absorb(state, token)
        with np.errstate(over="ignore"):
            drawn = mix_all(np.uint64(state) + self.tokens)
        level = (drawn >> np.uint64(40)).astype(np.int64) - (1 << 23)
        logits = (level >> self.script["flatness"]).astype(np.float32) * np.float32(2**-20)
        logits[EOS] += np.float32(self.script["eos_bias"])
        hole = (drawn & np.uint64(0xFF)) < np.uint64(self.script["holes"])
        hole[BOS] = False
        logits[hole] = -np.inf
        return logits

    def prepare_inputs_for_generation(self, decoder_input_ids, encoder_outputs=None, **kwargs):
        return {"decoder_input_ids": decoder_input_ids, "encoder_outputs": encoder_outputs}

    def forward(self, input_ids=None, decoder_input_ids=None, encoder_outputs=None, return_dict=True):
        questions = [int(q) & MASK for q in encoder_outputs.last_hidden_state[:, 0, 0].tolist()]
        rows = [self.row(q, history) for q, history in zip(questions, decoder_input_ids.tolist(), strict=True)]
        return Seq2SeqLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None, :])


def generate(case):
    config = Config(
        is_encoder_decoder=True,
        vocab_size=case["vocabulary"],
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=START,
    )
    model = Scripted(config, case["script"])
    options = case["config"]
    beams = options["beams"]
    generation = GenerationConfig(
        do_sample=False,
        num_beams=beams,
        num_return_sequences=options["sequences"],
        max_new_tokens=options["max_new_tokens"],
        min_new_tokens=options["min_new_tokens"],
        no_repeat_ngram_size=options["no_repeat_ngram"],
        forced_bos_token_id=BOS if options["force_bos"] else None,
        forced_eos_token_id=EOS if options["force_eos"] else None,
        length_penalty=options["length_penalty"],
        early_stopping=options["early_stopping"],
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=START,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    # As signed numbers, which is what a tensor holds.
    questions = [model.question(ask) for ask in case["asks"]]
    questions = torch.tensor([q - (1 << 64) if q >> 63 else q for q in questions])
    encoded = BaseModelOutput(last_hidden_state=questions[:, None, None])
    out = model.generate(
        input_ids=torch.zeros((len(questions), 1), dtype=torch.long),
        encoder_outputs=encoded,
        generation_config=generation,
    )
    answers = []
    if beams == 1:
        for row, tokens in enumerate(out.sequences[:, 1:].tolist()):
            tokens = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
            log_probs = []
            for step, token in enumerate(tokens):
                processed = out.scores[step][row]
                # A forced token has 0, and a banned one minus infinity, as in beam search.
                last = step + 1 == options["max_new_tokens"]
                if (step == 0 and options["force_bos"]) or (last and options["force_eos"]):
                    log_probs.append(0.0)
                elif processed[token] == -torch.inf:
                    log_probs.append(-torch.inf)
                else:
                    log_probs.append(out.logits[step][row].log_softmax(-1)[token].item())
            answers.append([{"tokens": tokens, "log_probs": log_probs}])
        return answers
    transitions = model.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
    lengths = (out.beam_indices >= 0).sum(-1).tolist()
    sequences = out.sequences[:, 1:].tolist()
    rows = []
    for tokens, length, log_probs, score in zip(sequences, lengths, transitions.tolist(), out.sequences_scores.tolist()):
        rows.append({"tokens": tokens[:length], "log_probs": log_probs[:length], "score": score})
    count = options["sequences"]
    # A place that no beam has won is padding in the reference.
    return [[row for row in rows[at : at + count] if row["tokens"]] for at in range(0, len(rows), count)]


def topk(values, k, dim=-1, **_):
    assert dim == -1
    found = torch.sort(values, dim=-1, descending=True, stable=True)
    return found.values[..., :k], found.indices[..., :k]


def noisy(log_softmax):
    noise = torch.Generator().manual_seed(1)

    def with_noise(values, dim):
        found = log_softmax(values, dim=dim)
        return found + (torch.rand(found.shape, generator=noise) - 0.5) * 4e-6

    return with_noise


def tokens(answers):
    return [[row["tokens"] for row in rows] for rows in answers]


def draw(rng):
    beams = rng.choice([1, 1, 2, 3, 3, 4, 5])
    vocabulary = rng.randint(max(8, 2 * beams), rng.choice([12, 24, 60]))
    max_new_tokens = rng.choice([1, 2, 3, 5, 8, 12, 16, 24])
    case = {
        "script": {
            "seed": rng.getrandbits(32),
            "memory": rng.choice([None, None, 1, 2, 3]),
            "flatness": rng.choice([0, 1, 2, 3, 4]),
            "eos_bias": rng.choice([-3, 0, 0, 1, 2, 3, 4]),
            "holes": rng.choice([0, 0, 0, 0, 128, 200, 240]),
        },
        "vocabulary": vocabulary,
        "asks": [
            {
                "image": rng.getrandbits(32),
                "prompt": [rng.randrange(vocabulary) for _ in range(rng.randint(1, 4))],
            }
            for _ in range(rng.choice([1, 1, 2, 3, 4]))
        ],
        "config": {
            "beams": beams,
            "sequences": rng.randint(1, beams),
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": rng.choice([0, 0, 0, rng.randint(0, max_new_tokens)]),
            "no_repeat_ngram": rng.choice([0, 1, 2, 3, 3, 4]),
            "force_bos": rng.random() < 0.6,
            "force_eos": rng.random() < 0.6,
            # Exact in f32.
            "length_penalty": rng.choice([1.0, 1.0, 1.0, 0.0, 0.5, 2.0, -1.0, -0.5]),
            "early_stopping": rng.choice([True, False, "never"]),
        },
    }
    if beams > 1 and rng.random() < 0.15:
        # Where the sign of the penalty decides how long is searched.
        case["config"] |= {
            "sequences": beams,
            "max_new_tokens": 24,
            "length_penalty": rng.choice([-0.125, -0.25, -0.5]),
            "early_stopping": rng.choice(["never", False]),
        }
    return case


def short(value):
    """Seven digits, which is what an f32 has; `null` for minus infinity."""
    if isinstance(value, float):
        return None if value == -torch.inf else float(f"{value:.7g}")
    if isinstance(value, list):
        return [short(item) for item in value]
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return value


def distribution(rng):
    size = rng.randint(2, 40)
    spread = rng.choice([256, 4096, 16384])
    # Few values: many are equal.
    values = [rng.randint(-spread, spread) / 1024 for _ in range(rng.choice([3, 8, size]))]
    scores = [rng.choice([*values, -torch.inf]) if rng.random() < 0.2 else rng.choice(values) for _ in range(size)]
    if max(scores) == -torch.inf:
        return None
    line = {
        "scores": [None if score == -torch.inf else score for score in scores],
        "temperature": rng.choice([1.0, 0.5, 0.75, 2.0, 4.0]),
        "top_k": rng.choice([0, 0, 1, 2, 5, 100]),
        "top_p": rng.choice([1.0, 0.5, 0.75, 0.875, 0.9375, 0.25]),
    }
    found = torch.tensor([scores])
    if line["temperature"] != 1.0:
        found = TemperatureLogitsWarper(line["temperature"])(None, found)
    if line["top_k"]:
        found = TopKLogitsWarper(line["top_k"])(None, found)
    if line["top_p"] < 1.0:
        reached = found.sort().values.softmax(-1).double().cumsum(-1) - (1 - line["top_p"])
        if reached.abs().min() < 1e-5:
            return None  # a rounding would decide
        original = torch.sort
        torch.sort = lambda values, descending: original(values, descending=descending, stable=True)
        found = TopPLogitsWarper(line["top_p"])(None, found)
        torch.sort = original
    line["probabilities"] = short(found.softmax(-1)[0].tolist())
    return line


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rng = random.Random(2024)
    functional = torch.nn.functional
    original, log_softmax = torch.topk, functional.log_softmax
    lines, ties, ends, dropped = [], 0, 0, 0
    while len(lines) < CASES:
        case = draw(rng)
        plain = generate(case)
        torch.topk = topk
        answers = generate(case)
        functional.log_softmax = noisy(log_softmax)
        trials = 8 if case["config"]["beams"] > 1 else 0
        steady = all(tokens(generate(case)) == tokens(answers) for _ in range(trials))
        torch.topk, functional.log_softmax = original, log_softmax
        if not steady:
            dropped += 1
            continue
        case["answers"] = short(answers)
        if tokens(plain) != tokens(answers):
            case["tie"] = True
            ties += 1
        limit = case["config"]["max_new_tokens"]
        ends += any(len(row["tokens"]) < limit for rows in answers for row in rows)
        lines.append(case)
    while len(lines) < CASES + DISTRIBUTIONS:
        line = distribution(rng)
        if line is not None:
            lines.append(line)
    TARGET.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    print(f"{len(lines)} lines, {TARGET.stat().st_size} bytes; {ties} cases with ties, {ends} that ended early, {dropped} dropped")


if __name__ == "__main__":
    main()
