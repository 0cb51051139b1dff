"""Language models: checkpoints as Hugging Face has them, read without a copy.

config = Config.load(directory)
weights = Weights(directory, config)
tokenizer = Tokenizer(directory)
"""

from tempo.llm.config import Config, Llama3Scaling
from tempo.llm.tokenizer import Tokenizer
from tempo.llm.weights import Weights

__all__ = ["Config", "Llama3Scaling", "Tokenizer", "Weights"]
