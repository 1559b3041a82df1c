"""Runs `transformers`' BertForPreTraining (PyTorch) on saved inputs: transformers_forward.py MODEL_DIR IN.npz OUT.npz.

Called by test_model.py in the development environment, where transformers lives. MODEL_DIR is a Hugging Face folder.
"""

import sys

import numpy as np
import torch
from transformers import BertForPreTraining


def main(model_dir: str, inputs: str, outputs: str) -> None:
    model, report = BertForPreTraining.from_pretrained(model_dir, output_loading_info=True)
    model.eval()
    arrays = {name: torch.from_numpy(value).long() for name, value in np.load(inputs).items()}
    with torch.no_grad():
        result = model(
            input_ids=arrays["input_ids"],
            attention_mask=arrays["input_mask"],
            token_type_ids=arrays["segment_ids"],
            output_hidden_states=True,
        )
    np.savez(
        outputs,
        prediction_logits=result.prediction_logits.numpy(),
        seq_relationship_logits=result.seq_relationship_logits.numpy(),
        last_hidden_state=result.hidden_states[-1].numpy(),
        missing=np.array(sorted(report["missing_keys"]), dtype=str),
        unexpected=np.array(sorted(report["unexpected_keys"]), dtype=str),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
