"""The parts of a run's specification: one frozen dataclass for each kind of subject, model, optimizer and data.

Each part is what a config group (``conf/model``, ``conf/optimizer``, ...) fills in. ``name`` is the preset's name, a
label; ``kind`` decides the class, and with it which other keys exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accum_sweeps.plan.setting import setting

NAME_DOC = "name of the preset, a label for tables; not part of the identity"
SCHEDULES = ("constant", "cosine")
NORMS = ("layernorm", "rmsnorm", "none")
POSITIONS = ("rope", "none")
LENGTHS = ("fixed", "documents")


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """Next-token prediction with the built-in decoder."""

    kind: ClassVar[str] = "lm"
    name: str = setting(NAME_DOC, label=True)


@dataclass(frozen=True, kw_only=True)
class PythonHook:
    """The user's own training: a Python class with ``build``, ``batch`` and ``loss``."""

    kind: ClassVar[str] = "python"
    name: str = setting(NAME_DOC, label=True)
    target: str = setting("the class, as module:Class")
    args: Mapping[str, Any] = setting("keyword arguments of the class, plain JSON values", default={})
    files: tuple[str, ...] = setting("further source or data files that decide the numbers", default=())
    code_hash: str = setting("hash of the hook's source files, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class CommandHook:
    """The user's own training: any program that reads a JSON file and appends metric lines to another."""

    kind: ClassVar[str] = "command"
    name: str = setting(NAME_DOC, label=True)
    argv: tuple[str, ...] = setting("program and arguments; {spec} stands for the path of the JSON file")
    args: Mapping[str, Any] = setting("free values for the program, found in the JSON file", default={})
    files: tuple[str, ...] = setting("further source or data files that decide the numbers", default=())
    code_hash: str = setting("hash of the program's source files, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only transformer with a SwiGLU feed-forward layer and an untied head."""

    kind: ClassVar[str] = "decoder"
    name: str = setting(NAME_DOC, label=True)
    layers: int = setting("number of transformer blocks", at_least=1)
    width: int = setting("width of the residual stream", at_least=1)
    heads: int = setting("attention heads; divides width", at_least=1)
    ffn_width: int = setting("hidden width of the SwiGLU feed-forward layer", at_least=1)
    norm: str = setting("normalization before attention, before the feed-forward layer and before the head", choices=NORMS)
    qk_norm: bool = setting("normalize queries and keys per head")
    positions: str = setting("rotary position embedding, or none", choices=POSITIONS)
    vocabulary: int = setting("number of token ids", at_least=2)


@dataclass(frozen=True, kw_only=True)
class NoModel:
    """The subject brings its own model."""

    kind: ClassVar[str] = "none"
    name: str = setting(NAME_DOC, label=True)


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """torch.optim.AdamW: decoupled weight decay."""

    kind: ClassVar[str] = "adamw"
    name: str = setting(NAME_DOC, label=True)
    lr: float = setting("learning rate at the end of the warmup", at_least=0)
    betas: tuple[float, float] = setting("decay rates of the first and second moment", at_least=0, below=1)
    eps: float = setting("term added to the root of the second moment", at_least=0)
    weight_decay: float = setting("decoupled weight decay per unit of learning rate", at_least=0)
    max_norm: float | None = setting("clip the whole gradient's L2 norm once per optimizer step; null = off", above=0)
    schedule: str = setting("learning rate over optimizer steps, after the warmup", choices=SCHEDULES)
    warmup_steps: int = setting("optimizer steps of linear warmup", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """torch.optim.SGD."""

    kind: ClassVar[str] = "sgd"
    name: str = setting(NAME_DOC, label=True)
    lr: float = setting("learning rate at the end of the warmup", at_least=0)
    momentum: float = setting("momentum; 0 = plain SGD", at_least=0, below=1)
    nesterov: bool = setting("Nesterov momentum; needs momentum above 0")
    weight_decay: float = setting("coupled L2 weight decay", at_least=0)
    max_norm: float | None = setting("clip the whole gradient's L2 norm once per optimizer step; null = off", above=0)
    schedule: str = setting("learning rate over optimizer steps, after the warmup", choices=SCHEDULES)
    warmup_steps: int = setting("optimizer steps of linear warmup", at_least=0)


@dataclass(frozen=True, kw_only=True)
class StandardLibrary:
    """The running Python's standard library as text: bytes are tokens, files are split into train and evaluation."""

    kind: ClassVar[str] = "stdlib"
    name: str = setting(NAME_DOC, label=True)
    seq_len: int = setting("longest row, in target tokens", at_least=1)
    lengths: str = setting("fixed = every row full; documents = rows end where a text block ends", choices=LENGTHS)
    eval_rows: int = setting("rows of the fixed evaluation set", at_least=1)
    hash: str = setting("hash of the corpus, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """A text file, or a folder of them: bytes are tokens."""

    kind: ClassVar[str] = "text"
    name: str = setting(NAME_DOC, label=True)
    path: str = setting("file or folder", label=True)
    pattern: str = setting("which files of a folder, as a glob", default="**/*.txt", label=True)
    seq_len: int = setting("longest row, in target tokens", at_least=1)
    lengths: str = setting("fixed = every row full; documents = rows end where a text block ends", choices=LENGTHS)
    eval_rows: int = setting("rows of the fixed evaluation set", at_least=1)
    hash: str = setting("hash of the corpus, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A file of token ids, memory-mapped; the last part of it is the evaluation text."""

    kind: ClassVar[str] = "tokens"
    name: str = setting(NAME_DOC, label=True)
    path: str = setting("the file", label=True)
    integer: str = setting("how a token id is stored, little-endian", choices=("uint16", "uint32"))
    eval_share: float = setting("share of the file, at its end, kept for evaluation", above=0, below=1)
    seq_len: int = setting("longest row, in target tokens", at_least=1)
    eval_rows: int = setting("rows of the fixed evaluation set", at_least=1)
    hash: str = setting("hash of the file, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class NoData:
    """The subject brings its own data."""

    kind: ClassVar[str] = "none"
    name: str = setting(NAME_DOC, label=True)


Subject = LanguageModel | PythonHook | CommandHook
Model = Decoder | NoModel
Optimizer = AdamW | Sgd
Data = StandardLibrary | TextFiles | TokenFile | NoData

# The config groups whose presets become parts: group -> kind -> class.
KINDS: dict[str, dict[str, type]] = {
    "subject": {part.kind: part for part in (LanguageModel, PythonHook, CommandHook)},
    "model": {part.kind: part for part in (Decoder, NoModel)},
    "optimizer": {part.kind: part for part in (AdamW, Sgd)},
    "data": {part.kind: part for part in (StandardLibrary, TextFiles, TokenFile, NoData)},
}
