"""Runs `transformers` (PyTorch) on saved inputs: transformers_forward.py MODEL_DIR IN.npz OUT.npz [MODEL_DIR ...].

Called by tests in the development environment, where transformers lives. MODEL_DIR is a Hugging Face folder; its
config.json names the class. Without weights in it, random ones are made and saved there first. With "text" in IN.npz,
AutoTokenizer's ids of that text come back too.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(*paths: str) -> None:
    for model_dir, inputs, outputs in zip(paths[::3], paths[1::3], paths[2::3], strict=True):
        forward(model_dir, inputs, outputs)


def forward(model_dir: str, inputs: str, outputs: str) -> None:
    config = transformers.AutoConfig.from_pretrained(model_dir)
    model_class = getattr(transformers, config.architectures[0])
    if not any(Path(model_dir).glob("*.safetensors")):
        make(model_class, config, model_dir)
    model, report = model_class.from_pretrained(model_dir, output_loading_info=True)
    model.eval()
    arrays = dict(np.load(inputs))
    text = arrays.pop("text", None)
    arrays = {name: torch.from_numpy(value).long() for name, value in arrays.items()}
    with torch.no_grad():
        result = model(
            input_ids=arrays["input_ids"],
            attention_mask=arrays["input_mask"],
            token_type_ids=arrays["segment_ids"],
            output_hidden_states=True,
        )
    found = {name: value.numpy() for name, value in result.items() if isinstance(value, torch.Tensor)}
    found["hidden_states"] = np.stack([layer.numpy() for layer in result.hidden_states])
    if text is not None:
        found["text_ids"] = np.array(transformers.AutoTokenizer.from_pretrained(model_dir)(str(text))["input_ids"])
    np.savez(
        outputs,
        **found,
        last_hidden_state=found["hidden_states"][-1],
        labels=np.array([config.id2label[i] for i in range(config.num_labels)], dtype=str),
        missing=np.array(sorted(report["missing_keys"]), dtype=str),
        unexpected=np.array(sorted(report["unexpected_keys"]), dtype=str),
    )


def make(model_class: type, config: transformers.PretrainedConfig, model_dir: str) -> None:
    """Random weights, with biases and LayerNorms that differ from their initial values, so that none goes untested."""
    torch.manual_seed(0)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    model.save_pretrained(model_dir, safe_serialization=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
