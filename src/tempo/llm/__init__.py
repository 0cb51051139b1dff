"""Language models: checkpoints as Hugging Face has them."""

from tempo.llm.config import Config, Llama3Scaling

__all__ = ["Config", "Llama3Scaling"]
