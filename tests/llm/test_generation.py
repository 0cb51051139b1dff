"""Generated tokens against those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tempo as tp
from tempo import llm
from tempo.llm.generation import rounded
from tempo.llm.text import Text
from tests.llm.checkpoints import CONTEXT, KINDS, VOCABULARY
from tests.llm.common import change_json

Checkpoint = Callable[..., tuple[Path, Any]]
PROMPTS = [np.random.default_rng(length).integers(8, VOCABULARY, length).tolist() for length in (5, 11, 1)]


def greedy(reference: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers generates, without the token that ends it."""
    with torch.no_grad():
        found = reference.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    ends = reference.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    tokens = found[0, len(prompt) :].tolist()
    return tokens[:-1] if tokens[-1] in ends else tokens


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers(checkpoint: Checkpoint, kind: str) -> None:
    directory, reference = checkpoint(kind)
    model = llm.load(directory)
    found = llm.generate(model, PROMPTS, max_new_tokens=128, temperature=0)
    assert [list(text.tokens) for text in found] == [greedy(reference, prompt, 128) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_those_of_transformers(checkpoint: Checkpoint, kind: str, rng: np.random.Generator) -> None:
    directory, reference = checkpoint(kind)
    model = llm.load(directory)
    texts = [rng.integers(8, VOCABULARY, length).tolist() for length in (30, 7)]
    for text, score in zip(texts, llm.score(model, texts), strict=True):
        with torch.no_grad():
            logits = torch.log_softmax(reference(torch.tensor([text])).logits[0], -1)
        expected = logits[:-1].gather(1, torch.tensor(text)[1:, None])[:, 0].numpy()
        np.testing.assert_allclose(score.logprobs, expected, atol=1e-4)
        assert score.perplexity == pytest.approx(np.exp(-expected.mean()), rel=1e-4)


def test_bfloat16(checkpoint: Checkpoint) -> None:
    directory, reference = checkpoint("llama", "bfloat16")
    model = llm.load(directory)
    assert {array.dtype.name for array in model.parameters.values()} == {"bfloat16"}
    (score,) = llm.score(model, [PROMPTS[1]])
    with torch.no_grad():
        logits = torch.log_softmax(reference(torch.tensor([PROMPTS[1]])).logits[0].float(), -1)
    expected = logits[:-1].gather(1, torch.tensor(PROMPTS[1])[1:, None])[:, 0].numpy()
    np.testing.assert_allclose(score.logprobs, expected, atol=0.1)


def test_without_a_dtype_it_is_that_of_the_weights(copy: Callable[..., Path]) -> None:
    directory = copy("llama", "bfloat16")
    change_json(directory / "config.json", dtype=...)
    assert llm.load(directory).dtype == tp.bfloat16
    assert llm.load(directory, dtype="float32").dtype == tp.float32


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> llm.LanguageModel:
    return llm.load(checkpoint("llama")[0])


def test_the_prompt_is_one_block(model: llm.LanguageModel) -> None:
    llm.generate(model, [PROMPTS[0]], max_new_tokens=4, temperature=0)
    run = next(iter(model._runs.values()))
    heads = [line for line in run.explain().splitlines() if line.startswith(("for t", "at t"))]
    assert heads[0] == "for t in 0 .. 14, all at once:"
    assert len(heads) == 3


def test_a_long_prompt_is_cut_where_memory_is_short(checkpoint: Checkpoint, rng: np.random.Generator) -> None:
    prompt = rng.integers(8, VOCABULARY, 200).tolist()
    directory, _ = checkpoint("llama")
    free, short = llm.load(directory, device="cpu"), llm.load(directory, device="cpu", memory="800KB")
    assert llm.generate(free, prompt, 4, temperature=0) == llm.generate(short, prompt, 4, temperature=0)
    (run,) = short._runs.values()
    assert 1 < run.plan.blocks["t"] < 200


def test_what_is_streamed_is_what_is_generated(model: llm.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": True}
    texts = llm.generate(model, PROMPTS, **options)
    pieces = list(llm.stream(model, PROMPTS, **options))
    for n, text in enumerate(texts):
        own = [piece for piece in pieces if piece.sequence == n]
        assert [piece.token for piece in own if piece.token is not None] == list(text.tokens)
        assert "".join(piece.text for piece in own) == text.text
        assert [piece.logprob for piece in own if piece.token is not None] == pytest.approx(text.logprobs, abs=1e-5)


def test_what_was_streamed_does_not_stay_in_memory(model: llm.LanguageModel) -> None:
    for _ in llm.stream(model, PROMPTS, max_new_tokens=3):
        pass
    for pieces in (llm.stream(model, PROMPTS, max_new_tokens=20), llm.Session(model).stream([5], max_new_tokens=20)):
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
    llm.generate(model, "the tale", max_new_tokens=20, stop="a")
    assert all(run._latest is None for run in model._runs.values())


def test_log_probabilities_are_those_of_the_score(model: llm.LanguageModel) -> None:
    (text,) = llm.generate(model, [PROMPTS[0]], max_new_tokens=9, temperature=0, logprobs=True)
    (score,) = llm.score(model, [[*PROMPTS[0], *text.tokens]])
    assert text.logprobs == pytest.approx(score.logprobs[len(PROMPTS[0]) - 1 :], abs=1e-4)


def test_a_sequence_ends_before_the_others(model: llm.LanguageModel) -> None:
    long, short = llm.generate(model, PROMPTS[:2], max_new_tokens=10, temperature=0)
    ending = llm.LanguageModel(model.config, model.parameters)
    ending.ends = (short.tokens[2],)
    first, second = llm.generate(ending, PROMPTS[:2], max_new_tokens=10, temperature=0)
    assert second.tokens == short.tokens[:2]
    assert second.ended
    assert not first.ended or short.tokens[2] in long.tokens
    (alone,) = llm.generate(ending, PROMPTS[1:2], max_new_tokens=10, temperature=0)
    assert alone == second


def test_a_text_ends_before_a_text(model: llm.LanguageModel) -> None:
    (whole,) = llm.generate(model, [PROMPTS[0]], max_new_tokens=12, temperature=0)
    stop = whole.text[3:6]
    (cut,) = llm.generate(model, [PROMPTS[0]], max_new_tokens=12, temperature=0, stop=["never", stop])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.ended
    pieces = llm.stream(model, [PROMPTS[0]], max_new_tokens=12, temperature=0, stop=stop)
    assert "".join(piece.text for piece in pieces) == cut.text


def test_half_a_character_before_the_end(model: llm.LanguageModel) -> None:
    """What is no character is in the text, whether its end is a token or the number of tokens."""
    assert model.tokenizer is not None
    half = model.tokenizer.encode("€", special=False)[:2]
    for last in ([], [model.ends[0]]):
        text = Text(model, (), after=[5])
        for token in [*model.tokenizer.encode("the", special=False), *half, *last]:
            text.add(token, None)
        assert text.rest() == "\ufffd"
        assert text.text == "the\ufffd"
        assert text.ended == bool(last)


def test_nothing_comes_behind_a_text_that_ends_it(model: llm.LanguageModel) -> None:
    assert model.tokenizer is not None
    text = Text(model, ("th",), after=[5])
    for token in [*model.tokenizer.encode("of the", special=False), model.tokenizer.encode("€", special=False)[0]]:
        text.add(token, None)
    assert (text.rest(), text.text) == ("", "of ")


def test_a_small_temperature_takes_the_most_likely_token(model: llm.LanguageModel) -> None:
    greedy, *others = (
        llm.generate(model, PROMPTS, max_new_tokens=6, temperature=temperature) for temperature in (0, 1e-37, 1e-40)
    )
    assert others == [greedy, greedy]


def test_prompts_are_texts_or_tokens(model: llm.LanguageModel) -> None:
    assert model.tokenizer is not None
    tokens = model.tokenizer.encode("the tale of")
    (a,) = llm.generate(model, "the tale of", max_new_tokens=3, temperature=0)
    (b,) = llm.generate(model, tokens, max_new_tokens=3, temperature=0)
    assert a == b
    arrays: tuple[Any, ...] = (np.array(tokens), torch.tensor(tokens), torch.tensor([tokens]), [np.array(tokens)])
    for array in arrays:
        assert llm.generate(model, array, max_new_tokens=3, temperature=0) == [a]
    assert llm.generate(model, []) == []
    assert list(llm.stream(model, [])) == []


def test_integers_of_all_kinds(model: llm.LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": np.float32(0.5), "stop": None}
    (a,) = llm.generate(model, [9], max_new_tokens=3, top_k=300, **options)
    integers: Any = {"max_new_tokens": np.int64(3), "top_k": np.int16(300)}
    (b,) = llm.generate(model, [9], **integers, **options)
    assert a == b and len(a.tokens) == 3
    # More than there are tokens are all of them.
    (c,) = llm.generate(model, [9], max_new_tokens=3, top_k=2**40, **options)
    (d,) = llm.generate(model, [9], max_new_tokens=3, top_k=VOCABULARY, **options)
    assert c == d


def test_the_same_seed_gives_the_same_text(model: llm.LanguageModel) -> None:
    first, again, other = (llm.generate(model, PROMPTS, max_new_tokens=8, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_the_same_seed_in_other_company(model: llm.LanguageModel, rng: np.random.Generator) -> None:
    """What is drawn for a prompt depends neither on how long the others are, nor on what a session remembers."""
    prompt, long = PROMPTS[0], rng.integers(8, VOCABULARY, 40).tolist()
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 3}
    (alone,) = llm.generate(model, prompt, **options)
    together = llm.generate(model, [prompt, long, prompt], **options)
    assert together[0] == alone
    assert together[2] != alone
    assert llm.generate(model, [long, prompt, prompt], **options)[2] == together[2]
    session = llm.Session(model)
    assert [piece.token for piece in session.stream(prompt, **options) if piece.token is not None] == [*alone.tokens]


def test_one_program_serves_many_lengths(model: llm.LanguageModel) -> None:
    llm.generate(model, [PROMPTS[0]], max_new_tokens=9, temperature=0.5)
    before = len(model._runs)
    llm.generate(model, [PROMPTS[1]], max_new_tokens=14, temperature=0.7)
    assert len(model._runs) == before


def test_programs_that_were_not_used_for_long_are_given_up(
    model: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempo.llm.model.MOST_PROGRAMS", 2)
    other = llm.LanguageModel(model.config, model.parameters)
    kept = []
    for count in (1, 2, 1, 3, 1):
        llm.generate(other, [[5]] * count, max_new_tokens=2, temperature=0)
        kept.append([dict(bounds)["B"] for _, _, bounds in other._runs])
    assert kept == [[1], [1, 2], [2, 1], [1, 3], [3, 1]]


def test_lengths_are_rounded() -> None:
    assert [rounded(n) for n in (1, 16, 17, 100, 129, 1000, 4097)] == [16, 16, 32, 112, 160, 1024, 5120]
    assert [rounded(n, 64, parts=2) for n in (1, 65, 129, 257)] == [64, 128, 192, 384]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[VOCABULARY]], {}, f"token {VOCABULARY} of a prompt is not one of the model's {VOCABULARY} tokens"),
        (["the", 5], {}, "a prompt with the token 'the': expected an integer"),
        ([1.5], {}, "a prompt with the token 1.5: expected an integer"),
        ([[1.7]], {}, "a prompt with the token 1.7: expected an integer"),
        (np.array([1.5]), {}, "a prompt with the token 1.5: expected an integer"),
        (b"the", {}, "b'the' is not a prompt"),
        ([b"the"], {}, "b'the' is not a prompt"),
        (5, {}, "5 is not a prompt"),
        ("the\udcff", {}, "a text has '\\udcff' at position 3, which is not a character"),
        ([[2]], {"max_new_tokens": 2.5}, "max_new_tokens = 2.5: expected an integer"),
        ([[2]], {"max_new_tokens": "2"}, "max_new_tokens = '2': expected an integer"),
        ([[2]], {"seed": None}, "seed = None: expected an integer"),
        ([[2]], {"temperature": "warm"}, "temperature = 'warm': expected a number"),
        ([[2]], {"top_k": 2.5}, "top_k = 2.5: expected an integer"),
        ([[2]], {"stop": ["a", 3]}, "stop = ['a', 3]: 3 is not a text"),
        ([[2]], {"stop": 3}, "stop = 3: 3 is not a text"),
        ([[2]], {"stop": b"ab"}, "stop = b'ab': 97 is not a text"),
        ([[2]], {"stop": ""}, "stop = '': an empty text is everywhere"),
        ([[2]], {"max_new_tokens": 0}, "max_new_tokens = 0: at least one token is generated"),
        ([[2]], {"temperature": -1}, "temperature = -1: a temperature is 0 or greater"),
        ([[2]], {"top_k": 0}, "top_k = 0: at least one token must stay"),
        ([[2]], {"top_p": 0.0}, "top_p = 0.0: a share of the probability is in (0, 1]"),
        ([[2]], {"min_p": 2.0}, "min_p = 2.0: a share of a probability is in [0, 1]"),
        ([[2]], {"repetition_penalty": 0.0}, "repetition_penalty = 0.0: a penalty is greater than 0; 1 is none"),
    ],
)
def test_mistakes(model: llm.LanguageModel, prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.errors.ModelError) as caught:
        llm.generate(model, prompts, **options)
    assert str(caught.value).splitlines()[0] == message


@pytest.mark.parametrize("use", [llm.generate, llm.stream, llm.score, lambda model, _: llm.Session(model)])
def test_a_model_that_was_not_loaded(use: Callable[..., Any], checkpoint: Checkpoint) -> None:
    directory, reference = checkpoint("llama")
    for given, what in ((directory, f"'{directory}'"), (str(directory), f"'{directory}'")):
        with pytest.raises(tp.errors.ModelError) as error:
            use(given, "the")
        assert str(error.value) == (
            f"the model is {what}, expected what llm.load gives\n  hint: model = llm.load({what})"
        )
    with pytest.raises(tp.errors.ModelError) as error:
        use(reference, "the")
    assert str(error.value) == (
        "the model is a LlamaForCausalLM, expected what llm.load gives\n  hint: model = llm.load(directory)"
    )


def test_learned_positions_come_to_an_end(checkpoint: Checkpoint) -> None:
    model = llm.load(checkpoint("gpt2")[0])
    with pytest.raises(tp.errors.ModelError, match=f"are more than the {CONTEXT} positions that the model has"):
        llm.generate(model, [[2]], max_new_tokens=CONTEXT)


def test_a_text_that_is_too_long_to_score(checkpoint: Checkpoint) -> None:
    model = llm.load(checkpoint("gpt2")[0])
    with pytest.raises(tp.errors.ModelError) as error:
        llm.score(model, [[2] * (CONTEXT + 1)])
    assert str(error.value) == (
        f"{CONTEXT + 1} tokens are more than the {CONTEXT} positions that the model has\n  hint: shorten the text"
    )


def test_stop_needs_a_tokenizer(model: llm.LanguageModel) -> None:
    without = llm.LanguageModel(model.config, model.parameters)
    with pytest.raises(tp.errors.ModelError) as error:
        llm.generate(without, [[2]], stop="a")
    assert str(error.value) == (
        "stop = 'a': the model has no tokenizer, so there is no text to look for it in\n"
        "  hint: put tokenizer.json beside the weights: load the tokenizer with Hugging Face transformers, which also "
        "reads other formats, and save it with tokenizer.save_pretrained(...)"
    )


def test_an_option_that_there_is_not(model: llm.LanguageModel) -> None:
    options: Any = {"temprature": 0}
    with pytest.raises(TypeError) as error:
        llm.stream(model, [5], **options)
    assert str(error.value) == (
        "stream() has no option 'temprature'; its options are max_new_tokens, stop, seed, logprobs, temperature, "
        "top_k, top_p, min_p, repetition_penalty"
    )
    with pytest.raises(TypeError, match=r"generate\(\) got an unexpected keyword argument 'temprature'"):
        llm.generate(model, [5], **options)


@pytest.mark.parametrize("dtype", ["foo", "int32", torch.float32])
def test_a_dtype_that_no_model_is_computed_in(checkpoint: Checkpoint, dtype: Any) -> None:
    with pytest.raises(tp.errors.ModelError) as error:
        llm.load(checkpoint("llama")[0], dtype=dtype)
    assert str(error.value) == (
        f"dtype = {dtype!r}: a model is not computed in that\n  hint: take float32, bfloat16 or float16"
    )
