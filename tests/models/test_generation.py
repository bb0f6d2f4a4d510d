"""Generation: transformers' generate with one tensor kept per layer, equal to computing every text from scratch."""

import re

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache, pipeline

from codingrate import CrateError, create_model
from codingrate.models import CrateModel
from codingrate.models.cache import DynamicProjectionLayer, StaticProjectionLayer, cache_bytes

from . import toys

compiler = pytest.mark.filterwarnings("ignore:.*(should not be instantiated|torch.jit):DeprecationWarning")  # torch's
cached = pytest.mark.parametrize("attention", ["mssa", "mssa-tied", "mhsa"])
every = pytest.mark.parametrize("attention", ["mssa", "mssa-tied", "mhsa", "tssa", "rate-gradient"])
ROOM = 37
PADDED = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]])


def build(attention="mssa", **fields):
    return toys.build("causal-lm", attention=attention, max_position_embeddings=ROOM, **fields).double().eval()


def prompts(batch=3, n=7):
    return torch.randint(2, 29, (batch, n))


def generate(model, ids, **options):
    options = {"max_new_tokens": 11, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(ids, output_logits=True, return_dict_in_generate=True, **options)


def assert_same(ours, reference):
    assert torch.equal(ours.sequences, reference.sequences)
    for a, b in zip(ours.logits, reference.logits, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)  # generate hands out float32


@torch.no_grad()
@every
@pytest.mark.parametrize(
    "mode", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=["greedy", "beam", "sample"]
)
def test_a_cache_changes_nothing(attention, mode):
    model, ids = build(attention), prompts()
    for options in ({}, {"attention_mask": PADDED}):
        results = []
        for cache in ({"use_cache": False}, {}):
            torch.manual_seed(3)
            results.append(generate(model, ids, **mode, **options, **cache))
        assert_same(*results)
        assert results[0].past_key_values is None
        assert (results[1].past_key_values is None) == (attention in ("tssa", "rate-gradient"))


@torch.no_grad()
@cached
@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}], ids=["greedy", "beam"])
@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
def test_a_static_cache_changes_nothing(attention, mode, mask):
    model, ids = build(attention), prompts()
    reference = generate(model, ids, attention_mask=mask, use_cache=False, **mode)
    ours = generate(model, ids, attention_mask=mask, cache_implementation="static", **mode)
    assert_same(ours, reference)
    assert isinstance(ours.past_key_values, StaticCache)
    given = StaticCache(config=model.config, max_cache_len=29)
    assert_same(generate(model, ids, attention_mask=mask, past_key_values=given, **mode), reference)


@torch.no_grad()
@every
def test_left_padding_changes_nothing(attention):
    """Positions are counted from the first real token, in generation and outside of it."""
    model, ids = build(attention), prompts()
    batch = generate(model, ids, attention_mask=PADDED)
    logits = model(ids, attention_mask=PADDED).logits
    for row, mask in enumerate(PADDED.bool()):
        alone = ids[row : row + 1, mask]
        assert torch.equal(generate(model, alone).sequences[0, alone.shape[1] :], batch.sequences[row, 7:])
        torch.testing.assert_close(model(alone).logits[0], logits[row, mask], rtol=0, atol=1e-10)


@torch.no_grad()
@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_future_changes_no_bit_of_the_past(attention, dtype):
    model, ids = build(attention).to(dtype), prompts(3, 23)
    logits = model(ids).logits
    for t in (0, 5, 15, 21):
        other = ids.clone()
        other[:, t + 1 :] = torch.randint(2, 29, (3, 22 - t))
        assert not torch.equal(other, ids)
        changed = model(other).logits
        assert torch.equal(changed[:, : t + 1], logits[:, : t + 1])
        assert not torch.equal(changed[:, t + 1 :], logits[:, t + 1 :])


def tensors(cache):
    """Tensors of keys and values that a cache holds, whatever they are called."""
    found = {
        value.data_ptr(): value for layer in cache.layers for value in vars(layer).values() if torch.is_tensor(value)
    }
    return [tensor for tensor in found.values() if tensor.ndim == 4]


@torch.no_grad()
def test_half_the_bytes_per_token_of_gpt2():
    config = GPT2Config(n_embd=14, n_layer=2, n_head=2, vocab_size=29, n_positions=ROOM, bos_token_id=0, eos_token_id=0)
    ids = prompts()
    caches = {}
    for name, model in {
        "mssa": build("mssa").float(), "mhsa": build("mhsa").float(), "gpt2": GPT2LMHeadModel(config).eval()
    }.items():  # fmt: skip
        caches[name] = model(ids, use_cache=True).past_key_values
        assert isinstance(caches[name], DynamicCache)
        assert cache_bytes(caches[name]) == sum(tensor.nbytes for tensor in tensors(caches[name]))
    assert len(tensors(caches["mssa"])) == 2
    assert cache_bytes(caches["gpt2"]) == cache_bytes(caches["mhsa"]) == 2 * cache_bytes(caches["mssa"])
    assert cache_bytes(caches["mssa"]) == 3 * 7 * 2 * 14 * 4  # batch, tokens, layers, d, float32
    static = StaticCache(config=toys.causal(), max_cache_len=19)
    build().float()(ids, past_key_values=static)
    assert cache_bytes(static) == 3 * 19 * 2 * 14 * 4


@torch.no_grad()
@cached
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
def test_a_sequence_in_pieces_is_the_sequence(attention, static, mask):
    model, ids = build(attention), prompts()
    whole = model(ids, attention_mask=mask).logits
    cache = StaticCache(config=model.config, max_cache_len=19) if static else None
    parts = []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        seen = None if mask is None else mask[:, :end]
        output = model(ids[:, start:end], attention_mask=seen, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        assert int(cache.get_seq_length()) == end
        parts.append(output.logits)
    real = slice(None) if mask is None else mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], rtol=0, atol=1e-10)
    cache.reset()
    assert int(cache.get_seq_length()) == 0
    again = model(ids, attention_mask=mask, past_key_values=cache).logits
    torch.testing.assert_close(again[real], whole[real], rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_cache_can_be_cropped_repeated_reordered_and_selected():
    model, ids = build(), prompts()
    expected = model(ids).logits

    def filled():
        cache = DynamicCache()
        model(ids[:, :6], past_key_values=cache)
        return cache

    cache = filled()
    cache.crop(-3)
    parts = model(ids[:, 3:], past_key_values=cache).logits
    torch.testing.assert_close(parts, expected[:, 3:], rtol=0, atol=1e-10)
    order = torch.tensor([2, 0, 0])
    for name, argument, rows in (
        ("reorder_cache", order, order),
        ("batch_select_indices", order[:2], order[:2]),
        ("batch_repeat_interleave", 2, torch.tensor([0, 0, 1, 1, 2, 2])),
    ):
        cache = filled()
        getattr(cache, name)(argument)
        step = model(ids[rows, 6:], past_key_values=cache).logits
        torch.testing.assert_close(step, expected[rows, 6:], rtol=0, atol=1e-10, msg=name)


@torch.no_grad()
def test_speculation_crops_the_cache():
    model, ids = build(), torch.randint(2, 5, (1, 9))
    plain = model.generate(ids, max_new_tokens=11, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=11, do_sample=False, prompt_lookup_num_tokens=3), plain)


@torch.no_grad()
def test_any_empty_cache_is_given_layers_of_one_tensor():
    model, ids = build(), prompts()
    for cache, kind in (
        (DynamicCache(), DynamicProjectionLayer),
        (DynamicCache(config=model.config), DynamicProjectionLayer),
        (StaticCache(config=model.config, max_cache_len=11), StaticProjectionLayer),
    ):
        model(ids, past_key_values=cache)
        assert [type(layer) for layer in cache.layers] == [kind, kind]
    with pytest.raises(CrateError, match=r"^this cache holds one tensor per layer, for attention 'mssa'"):
        build("mhsa")(ids[:, :1], past_key_values=cache)


@compiler
@torch.no_grad()
@pytest.mark.parametrize(
    ("attention", "backend"),
    [
        ("mssa", "aot_eager"),
        pytest.param("mssa", "inductor", marks=pytest.mark.slow),
        pytest.param("mssa-tied", "aot_eager", marks=pytest.mark.slow),
        pytest.param("mhsa", "aot_eager", marks=pytest.mark.slow),
    ],
)
def test_a_decoding_step_compiles_to_one_graph(attention, backend):
    torch._dynamo.reset()
    model, ids = build(attention, num_hidden_layers=1), prompts()
    step = torch.compile(model.forward, fullgraph=True, backend=backend)
    whole = model(ids).logits
    cache = StaticCache(config=model.config, max_cache_len=19)
    model(ids[:, :3], past_key_values=cache)  # a prompt is not compiled
    for t in range(3, 7):
        with torch._dynamo.config.patch(error_on_recompile=t > 3):  # one graph serves every step
            logits = step(ids[:, t : t + 1], past_key_values=cache).logits
        torch.testing.assert_close(logits[:, 0], whole[:, t], rtol=0, atol=1e-10)


@torch.no_grad()
def test_only_wanted_logits_are_computed():
    model, ids = build(), prompts()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:], rtol=0, atol=1e-12)
    places = torch.tensor([5, 0, 3])
    torch.testing.assert_close(model(ids, logits_to_keep=places).logits, whole[:, places], rtol=0, atol=1e-12)
    with pytest.raises(CrateError, match=r"^labels need the logits of every position; leave logits_to_keep at 0$"):
        model(ids, labels=ids, logits_to_keep=2)


@torch.no_grad()
def test_embeddings_stand_in_for_a_prompt():
    model, ids = build(), prompts()
    words = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=words).logits, model(ids).logits)
    new = model.generate(inputs_embeds=words, max_new_tokens=5, do_sample=False)
    assert torch.equal(new, generate(model, ids, max_new_tokens=5).sequences[:, 7:])


@torch.no_grad()
def test_a_text_longer_than_the_position_table_is_refused():
    model = build()
    line = r"^prompt of {} tokens and {} new ones exceed max_position_embeddings 37; shorten the prompt or "
    for n, options, new in (
        (7, {"max_new_tokens": 31}, 31),
        (7, {"max_length": 38}, 31),
        (37, {}, 1),
        (41, {"max_new_tokens": 2}, 2),
        (41, {"max_length": 20}, 1),
    ):
        with pytest.raises(CrateError, match=line.format(n, new)):
            model.generate(prompts(2, n), do_sample=False, **options)
    assert model.generate(prompts(2, 7), do_sample=False, max_new_tokens=30).shape == (2, 37)
    cache = DynamicCache()
    model(prompts(2, 37), past_key_values=cache)
    with pytest.raises(CrateError, match=r"^sequence of 38 tokens is longer than max_position_embeddings 37"):
        model(prompts(2, 1), past_key_values=cache)


def test_what_keeps_nothing_is_refused_a_cache():
    line = "does not support caching; pass use_cache=False$"
    with pytest.raises(CrateError, match=f"^attention 'tssa' {line}"):
        build("tssa").generate(prompts(), max_new_tokens=3, use_cache=True)
    with pytest.raises(CrateError, match=f"^a model without causal=True {line}"):
        CrateModel(toys.text())(input_ids=prompts(), use_cache=True)


def test_a_cache_is_made_when_asked_for_only():
    model, ids = build(), prompts()
    assert model(ids).past_key_values is None
    filled = model(ids[:, :4], use_cache=True).past_key_values
    assert filled.get_seq_length() == 4
    silent = model(ids[:, 4:], past_key_values=filled, use_cache=False)  # read, and not handed out
    assert silent.past_key_values is None
    torch.testing.assert_close(silent.logits, model(ids).logits[:, 4:], rtol=0, atol=1e-10)
    model.gradient_checkpointing_enable()
    output = model.train()(ids, labels=ids, use_cache=True)
    assert output.past_key_values is None  # a layer that is computed twice would keep its tokens twice
    output.loss.backward()
    with pytest.raises(CrateError, match=r"^past_key_values cannot be used with gradient checkpointing"):
        model(ids, past_key_values=DynamicCache())


def test_special_ids_come_from_the_config(tmp_path):
    plain, ids = toys.build("causal-lm").eval(), prompts(1)
    text = plain.generate(ids, max_new_tokens=6, do_sample=False)[0, 7:].tolist()
    assert len(text) == 6
    end = text[2]
    model = toys.build("causal-lm", eos_token_id=end, pad_token_id=1, bos_token_id=3).eval()
    model.load_state_dict(plain.state_dict())
    model.save_pretrained(tmp_path)
    for each in (model, AutoModelForCausalLM.from_pretrained(tmp_path)):
        found = each.generation_config
        assert (found.eos_token_id, found.pad_token_id, found.bos_token_id) == (end, 1, 3)
        short = each.generate(ids, max_new_tokens=6, do_sample=False)[0, 7:].tolist()
        assert short == text[: text.index(end) + 1]
    with torch.device("meta"):
        assert create_model("crate-gpt-base").generation_config.eos_token_id == 50256
        assert create_model("crate-gpt-base", vocab_size=29).generation_config.eos_token_id is None


def test_a_pipeline_writes_text(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(29)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", pad_token="w1", padding_side="left")
    fast.save_pretrained(tmp_path)
    model = toys.build("causal-lm", pad_token_id=1, max_position_embeddings=ROOM).eval()
    model.save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path))
    assert type(write.model) is type(model)
    texts = write(["w7 w3 w9", "w4"], max_new_tokens=5, do_sample=False, batch_size=2)
    for prompt, answer in (([7, 3, 9], texts[0]), ([4], texts[1])):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
        assert re.findall(r"w\d+", answer[0]["generated_text"]) == [f"w{i}" for i in expected[0].tolist()]
