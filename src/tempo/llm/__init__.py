"""Language models: checkpoints as Hugging Face has them, read without a copy."""

from tempo.llm.config import Config, Llama3Scaling
from tempo.llm.weights import Weights

__all__ = ["Config", "Llama3Scaling", "Weights"]
