"""The black-box twins against transformers' own models, with copied weights."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from codingrate import create_model

from . import toys


def randomize(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def copy_norm(ours, theirs, own, other):
    for kind in ("weight", "bias"):
        ours[f"{own}.{kind}"] = theirs[f"{other}.{kind}"]


def test_vit_is_transformers_vit():
    theirs = randomize(
        ViTForImageClassification(
            ViTConfig(
                hidden_size=15, num_hidden_layers=2, num_attention_heads=3, intermediate_size=60,
                image_size=(21, 14), patch_size=7, num_labels=5, layer_norm_eps=1e-6,
            )
        )
    )  # fmt: skip
    ours = create_model(
        "vit-small-patch16-224",
        hidden_size=15, num_hidden_layers=2, num_attention_heads=3, image_size=[21, 14], patch_size=7, num_labels=5,
    ).eval()  # fmt: skip
    old, new = theirs.state_dict(), {}
    new["crate.embedding.class_token"] = old["vit.embeddings.cls_token"][0, 0]
    new["crate.embedding.positions.weight"] = old["vit.embeddings.position_embeddings"][0]
    kernel = old["vit.embeddings.patch_embeddings.projection.weight"]  # (d, channels, P, P)
    new["crate.embedding.project.weight"] = kernel.permute(0, 2, 3, 1).flatten(1)
    new["crate.embedding.project.bias"] = old["vit.embeddings.patch_embeddings.projection.bias"]
    for i in range(2):
        own, other = f"crate.layers.{i}", f"vit.layers.{i}"
        for kind in ("weight", "bias"):
            parts = [old[f"{other}.attention.{x}_proj.{kind}"] for x in "qkv"]
            new[f"{own}.attention.project.{kind}"] = torch.cat(parts)
        copy_norm(new, old, f"{own}.attention.output", f"{other}.attention.o_proj")
        copy_norm(new, old, f"{own}.attention_norm", f"{other}.layernorm_before")
        copy_norm(new, old, f"{own}.sparsifier_norm", f"{other}.layernorm_after")
        copy_norm(new, old, f"{own}.sparsifier.expand", f"{other}.mlp.fc1")
        copy_norm(new, old, f"{own}.sparsifier.contract", f"{other}.mlp.fc2")
    copy_norm(new, old, "head_norm", "vit.layernorm")
    copy_norm(new, old, "head", "classifier")
    ours.load_state_dict(new)
    images = toys.pixels()
    with torch.no_grad():
        # float32 on both sides, sums in another order
        torch.testing.assert_close(ours(images).logits, theirs(images).logits, rtol=1e-5, atol=1e-5)


def test_gpt2_is_transformers_gpt2():
    theirs = randomize(
        GPT2LMHeadModel(
            GPT2Config(
                n_embd=14, n_layer=2, n_head=2, vocab_size=29, n_positions=13, activation_function="gelu",
                bos_token_id=0, eos_token_id=0,
            )
        )
    )  # fmt: skip
    ours = create_model(
        "gpt2-base",
        hidden_size=14, num_hidden_layers=2, num_attention_heads=2, vocab_size=29, max_position_embeddings=13,
    ).eval()  # fmt: skip
    old, new = theirs.state_dict(), {}
    new["crate.embedding.words.weight"] = new["head.weight"] = old["transformer.wte.weight"]
    new["crate.embedding.positions.weight"] = old["transformer.wpe.weight"]
    names = {
        "attention.project": "attn.c_attn", "attention.output": "attn.c_proj",
        "sparsifier.expand": "mlp.c_fc", "sparsifier.contract": "mlp.c_proj",
    }  # fmt: skip
    for i in range(2):
        own, other = f"crate.layers.{i}", f"transformer.h.{i}"
        for mine, yours in names.items():
            new[f"{own}.{mine}.weight"] = old[f"{other}.{yours}.weight"].T  # stored (in, out) there
            new[f"{own}.{mine}.bias"] = old[f"{other}.{yours}.bias"]
        copy_norm(new, old, f"{own}.attention_norm", f"{other}.ln_1")
        copy_norm(new, old, f"{own}.sparsifier_norm", f"{other}.ln_2")
    copy_norm(new, old, "crate.norm", "transformer.ln_f")
    ours.load_state_dict(new)
    ids = torch.randint(29, (3, 11))
    with torch.no_grad():
        mine, yours = ours(ids, labels=ids), theirs(ids, labels=ids)
    torch.testing.assert_close(mine.logits, yours.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.loss, yours.loss, rtol=1e-5, atol=1e-5)
