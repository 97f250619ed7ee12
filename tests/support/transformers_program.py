"""A tiny training by Hugging Face's Trainer with the callback, for .venv-torch. Prints what came of it."""

import os

import torch
from healer_steps.huggingface import StepTimes
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Words(Dataset):
    """The same few words again and again."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.arange(16) % 7
        return {"input_ids": words, "labels": words}


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir=os.environ["FOLDER"], max_steps=6, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, logging_steps=2, save_steps=3, report_to=[], use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    callback = StepTimes(checksum=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[callback])
    for _ in range(int(os.environ["TIMES"])):
        trainer.train()
        print("sent", callback.steps.sent, "dropped", callback.steps.dropped)


if __name__ == "__main__":
    main()
