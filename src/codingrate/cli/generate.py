"""`crate generate`: text that a causal language model goes on with, as it comes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import CrateError
from .output import Json, print_json
from .text import Opened, open_text_model

TOKENS = 200  # new ones, where the model has room for so many


def generate(
    run: Annotated[Path, typer.Argument(help="A run folder, or that of a saved model.")],
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    tokens: Annotated[int | None, typer.Option(min=1, help="New tokens at most; 200, or as many as fit.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Lower is safer, higher more varied; 0.8.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Draw from so many likeliest tokens; 50, 0 is all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this total share.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")] = False,
    beams: Annotated[int | None, typer.Option(min=2, help="Search for the likeliest text with so many beams.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws another text.")] = 0,
    which: Annotated[str, typer.Option(help="The run's best model or its last.")] = "last",
    as_json: Json = False,
) -> None:
    """Go on from a prompt, by drawing tokens, greedily, or by beam search (which shows its text at the end)."""
    how = _how(temperature, top_k, top_p, greedy, beams)
    if not prompt.strip():
        raise CrateError("the prompt is empty; give some text to go on from")
    opened = open_text_model(run, which, "CrateForCausalLM", "generate")
    from ..data import check_tokenizer

    check_tokenizer(opened.tokenizer, opened.model.config)
    encoded = opened.tokenizer(prompt, return_tensors="pt").to(opened.model.device)
    count = encoded["input_ids"].shape[1]
    how["max_new_tokens"] = _fitting(count, opened.model.config.max_tokens, tokens)
    start = time.perf_counter()
    ids = _generated(opened, encoded, how, seed, None if as_json else prompt)[count:]
    seconds = time.perf_counter() - start
    if as_json:
        text = opened.tokenizer.decode(ids, skip_special_tokens=True)
        said: dict[str, Any] = {"run": str(run), "which": which, "prompt": prompt, "text": text, "tokens": len(ids)}
        print_json({**said, **how, "seed": seed, "seconds": seconds})
        return
    print(f"{len(ids)} tokens, {len(ids) / seconds:.0f} a second", file=sys.stderr)


def _how(
    temperature: float | None, top_k: int | None, top_p: float | None, greedy: bool, beams: int | None
) -> dict[str, Any]:
    """What transformers' generate is asked for; flags that would have no effect are refused."""
    drawing = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
    searching = "--greedy" if greedy else f"--beams {beams}" if beams else None
    if searching is not None:
        for flag, value in {**drawing, "--beams": beams if greedy else None}.items():
            if value is not None:
                raise CrateError(f"{flag} does not go with {searching}; leave one out")
        return {"do_sample": False, "num_beams": beams or 1}
    if temperature is not None and not temperature > 0:
        raise CrateError(f"--temperature is {temperature}; it must be positive, and --greedy is the limit at 0")
    if top_p is not None and not 0 < top_p <= 1:
        raise CrateError(f"--top-p is {top_p}; it must lie in (0, 1]")
    how: dict[str, Any] = {"do_sample": True, "temperature": 0.8 if temperature is None else temperature}
    return {**how, "top_k": 50 if top_k is None else top_k, **({} if top_p is None else {"top_p": top_p})}


def _fitting(prompt: int, room: int, wanted: int | None) -> int:
    """How many new tokens the model has room for."""
    if prompt >= room:
        raise CrateError(
            f"the prompt is {prompt} tokens long, the model reads {room}; shorten it to {room - 1} or fewer"
        )
    if wanted is not None and prompt + wanted > room:
        raise CrateError(
            f"--tokens {wanted} after a prompt of {prompt} are more than the {room} tokens the model reads; "
            f"take --tokens {room - prompt} or fewer"
        )
    return min(TOKENS, room - prompt) if wanted is None else wanted


def _generated(opened: Opened, encoded: Any, how: dict[str, Any], seed: int, shown: str | None) -> Any:
    """The ids of prompt and continuation; with `shown`, the prompt, all of it is printed as it comes."""
    import torch
    from transformers import TextStreamer
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(seed)
    stream = shown is not None and how.get("num_beams", 1) == 1
    streamer = TextStreamer(opened.tokenizer, skip_prompt=True, skip_special_tokens=True) if stream else None
    if shown is not None:
        print(shown, end="", flush=True)
    end = opened.tokenizer.eos_token_id
    ids = opened.model.generate(
        input_ids=encoded["input_ids"],
        attention_mask=encoded["attention_mask"],
        streamer=streamer,
        eos_token_id=end,
        pad_token_id=end or 0,
        **how,
    )[0]
    if shown is not None and not stream:
        print(opened.tokenizer.decode(ids[encoded["input_ids"].shape[1] :], skip_special_tokens=True))
    return ids
