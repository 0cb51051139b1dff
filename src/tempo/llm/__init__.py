"""Language models: checkpoints as Hugging Face has them, text that goes on from prompts, how likely texts are.

model = llm.load("checkpoints/llama")
for piece in llm.stream(model, "Once upon a time", temperature=0.7):
    print(piece.text, end="")
"""

from tempo.llm.config import Config
from tempo.llm.decoder import Decoder
from tempo.llm.generation import Generated, Piece, generate, stream
from tempo.llm.model import LanguageModel
from tempo.llm.scoring import Score, score
from tempo.llm.session import Session
from tempo.llm.tokenizer import Tokenizer
from tempo.llm.weights import Weights

load = LanguageModel.load

__all__ = [
    "Config",
    "Decoder",
    "Generated",
    "LanguageModel",
    "Piece",
    "Score",
    "Session",
    "Tokenizer",
    "Weights",
    "generate",
    "load",
    "score",
    "stream",
]
