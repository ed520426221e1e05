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
MEANS = ("token", "sample", "micro_batch")
NORMS = ("layernorm", "layernorm_gain", "layernorm_plain", "rmsnorm", "batchnorm", "groupnorm", "none")
FEED_FORWARDS = ("swiglu", "gelu")
POSITIONS = ("rope", "learned", "none")
DROPOUT_MASKS = ("sample", "stream")
INITS = ("normal", "truncated")
DRAWN_LENGTHS = ("uniform", "geometric")
LENGTHS = ("fixed", "documents", *DRAWN_LENGTHS)
LAST_WINDOWS = ("drop", "short")
LENGTHS_DOC = "fixed = every row full; documents = rows end where a text block ends; uniform, geometric = drawn, up to seq_len"
EPOCH_DOC = "rows of an epoch, each seen once per epoch in a new order; null = rows are drawn without end"
LAST_WINDOW_DOC = "what is left of an epoch's rows when no global batch is left: drop, or a short window, averaged exactly"
FROZEN_DOC = "parameters that are not trained, by name; patterns as in a shell: * is any text, ? a character, [ab] one of several"


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """Next-token prediction with the built-in decoder."""

    kind: ClassVar[str] = "lm"
    name: str = setting(NAME_DOC, label=True)
    mean: str = setting("what the loss is a mean over: tokens, samples' means, or micro-batches' means", choices=MEANS, neutral="token")
    label_smoothing: float = setting("share of the target probability spread over all tokens", at_least=0, below=1, neutral=0.0)
    z_loss: float = setting(
        "coefficient of the squared log of the softmax's normalizer, added to each token's loss", at_least=0, neutral=0.0
    )
    accumulation: str = setting(
        "gradient caching (cached) is for losses that couple samples: subject=clip", choices=("plain",), neutral="plain"
    )


@dataclass(frozen=True, kw_only=True)
class Contrastive:
    """Images against captions with a dual encoder: symmetric cross entropy over all pairs of a batch, learnable temperature."""

    kind: ClassVar[str] = "clip"
    name: str = setting(NAME_DOC, label=True)
    accumulation: str = setting(
        "plain = each micro-batch has its own negatives; cached = gradient caching, all samples of the batch are negatives",
        choices=("plain", "cached"),
    )
    padding: str = setting(
        "captions padded to the longest of the data (fixed) or of the micro-batch (micro_batch)", choices=("fixed", "micro_batch")
    )


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
    """A decoder-only transformer, pre-norm."""

    kind: ClassVar[str] = "decoder"
    name: str = setting(NAME_DOC, label=True)
    layers: int = setting("number of transformer blocks", at_least=1)
    width: int = setting("width of the residual stream", at_least=1)
    heads: int = setting("attention heads; divides width", at_least=1)
    ffn_width: int = setting("hidden width of the feed-forward layer", at_least=1)
    norm: str = setting("normalization before attention, before the feed-forward layer and before the head", choices=NORMS)
    norm_groups: int = setting("groups of norm=groupnorm; divides width", at_least=1, neutral=4)
    qk_norm: bool = setting("normalize queries and keys per head")
    positions: str = setting("rotary or learned position embedding, or none", choices=POSITIONS)
    vocabulary: int = setting("number of token ids", at_least=2)
    ffn: str = setting("feed-forward layer: gated by silu (swiglu), or plain with gelu", choices=FEED_FORWARDS, neutral="swiglu")
    attention_bias: bool = setting("biases of the attention's linear layers", neutral=False)
    tied: bool = setting("the head's weight is the embedding's", neutral=False)
    dropout: float = setting("dropout after the embedding, the attention and the feed-forward layer", at_least=0, below=1, neutral=0.0)
    dropout_masks: str = setting(
        "sample = masks keyed by sample, the same for every k; stream = torch's global stream, as usual",
        choices=DROPOUT_MASKS,
        neutral="sample",
    )
    init: str = setting(
        "initial matrices: normal, or normal cut off at three standard deviations as in open_lm", choices=INITS, neutral="normal"
    )
    frozen: tuple[str, ...] = setting(FROZEN_DOC, neutral=())


@dataclass(frozen=True, kw_only=True)
class DualEncoder:
    """A vision and a text transformer with a common embedding: transformers' CLIPModel, made from this configuration."""

    kind: ClassVar[str] = "dual_encoder"
    name: str = setting(NAME_DOC, label=True)
    image_size: int = setting("pixels of an image's side", at_least=1)
    patch: int = setting("pixels of a patch's side; divides image_size", at_least=1)
    vision_layers: int = setting("transformer blocks of the image encoder", at_least=1)
    vision_width: int = setting("width of the image encoder", at_least=1)
    vision_heads: int = setting("attention heads of the image encoder; divides vision_width", at_least=1)
    text_layers: int = setting("transformer blocks of the text encoder", at_least=1)
    text_width: int = setting("width of the text encoder", at_least=1)
    text_heads: int = setting("attention heads of the text encoder; divides text_width", at_least=1)
    text_length: int = setting("longest caption, in tokens with start and end", at_least=3)
    vocabulary: int = setting("number of token ids", at_least=4)
    projection: int = setting("width of the common embedding", at_least=1)
    dropout: float = setting("dropout on attention weights", at_least=0, below=1)
    weights: str | None = setting("file or folder of weights to start from; null = drawn from the stream init", label=True)
    weights_hash: str = setting("hash of the weights, found when the sweep is planned", default="")
    library: str = setting("version of transformers, which makes the model; found when the sweep is planned", default="")
    frozen: tuple[str, ...] = setting(FROZEN_DOC, default=())


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
class Adam:
    """torch.optim.Adam: coupled weight decay."""

    kind: ClassVar[str] = "adam"
    name: str = setting(NAME_DOC, label=True)
    lr: float = setting("learning rate at the end of the warmup", at_least=0)
    betas: tuple[float, float] = setting("decay rates of the first and second moment", at_least=0, below=1)
    eps: float = setting("term added to the root of the second moment", at_least=0)
    weight_decay: float = setting("coupled L2 weight decay: added to the gradient, per unit of weight", at_least=0)
    max_norm: float | None = setting("clip the whole gradient's L2 norm once per optimizer step; null = off", above=0)
    schedule: str = setting("learning rate over optimizer steps, after the warmup", choices=SCHEDULES)
    warmup_steps: int = setting("optimizer steps of linear warmup", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Muon:
    """torch.optim.Muon for hidden matrices, torch.optim.AdamW for embeddings, head, gains and biases."""

    kind: ClassVar[str] = "muon"
    name: str = setting(NAME_DOC, label=True)
    lr: float = setting("learning rate of the hidden matrices at the end of the warmup", at_least=0)
    momentum: float = setting("momentum of the hidden matrices", at_least=0, below=1)
    nesterov: bool = setting("Nesterov momentum")
    ns_steps: int = setting("Newton-Schulz iterations, which torch computes in bfloat16", at_least=1)
    adamw_lr: float = setting("learning rate of all other parameters at the end of the warmup", at_least=0)
    betas: tuple[float, float] = setting("AdamW's decay rates of the first and second moment", at_least=0, below=1)
    eps: float = setting("AdamW's term added to the root of the second moment", at_least=0)
    weight_decay: float = setting("decoupled weight decay per unit of learning rate, of all parameters", at_least=0)
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
    lengths: str = setting(LENGTHS_DOC, choices=LENGTHS)
    eval_rows: int = setting("rows of the fixed evaluation set", at_least=1)
    epoch_rows: int | None = setting(EPOCH_DOC, at_least=1, neutral=None)
    last_window: str = setting(LAST_WINDOW_DOC, choices=LAST_WINDOWS, neutral="drop")
    hash: str = setting("hash of the corpus, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """A text file, or a folder of them: bytes are tokens."""

    kind: ClassVar[str] = "text"
    name: str = setting(NAME_DOC, label=True)
    path: str = setting("file or folder", label=True)
    pattern: str = setting("which files of a folder, as a glob", default="**/*.txt", label=True)
    seq_len: int = setting("longest row, in target tokens", at_least=1)
    lengths: str = setting(LENGTHS_DOC, choices=LENGTHS)
    eval_rows: int = setting("rows of the fixed evaluation set", at_least=1)
    epoch_rows: int | None = setting(EPOCH_DOC, at_least=1, neutral=None)
    last_window: str = setting(LAST_WINDOW_DOC, choices=LAST_WINDOWS, neutral="drop")
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
    lengths: str = setting(
        "fixed = every row full; uniform, geometric = drawn, up to seq_len", choices=("fixed", *DRAWN_LENGTHS), neutral="fixed"
    )
    epoch_rows: int | None = setting(EPOCH_DOC, at_least=1, neutral=None)
    last_window: str = setting(LAST_WINDOW_DOC, choices=LAST_WINDOWS, neutral="drop")
    hash: str = setting("hash of the file, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class Digits:
    """scikit-learn's handwritten digits, drawn at the model's input size, each with a caption in words."""

    kind: ClassVar[str] = "digits"
    name: str = setting(NAME_DOC, label=True)
    epoch_rows: int | None = setting(EPOCH_DOC, at_least=1)
    last_window: str = setting(LAST_WINDOW_DOC, choices=LAST_WINDOWS)
    shuffle: bool = setting("a new order of the rows in each epoch; false = always the order of the data")
    eval_rows: int = setting("pairs of the fixed evaluation set", at_least=2)
    hash: str = setting("hash of images and captions, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class ImageText:
    """Images of a folder with captions in a file."""

    kind: ClassVar[str] = "image_text"
    name: str = setting(NAME_DOC, label=True)
    path: str = setting("folder of the images", label=True)
    captions: str = setting("file with a line for each pair: image file, tab or comma, caption", label=True)
    epoch_rows: int | None = setting(EPOCH_DOC, at_least=1)
    last_window: str = setting(LAST_WINDOW_DOC, choices=LAST_WINDOWS)
    shuffle: bool = setting("a new order of the rows in each epoch; false = always the order of the data")
    eval_rows: int = setting("pairs of the fixed evaluation set", at_least=2)
    hash: str = setting("hash of images and captions, found when the sweep is planned", default="")


@dataclass(frozen=True, kw_only=True)
class NoData:
    """The subject brings its own data."""

    kind: ClassVar[str] = "none"
    name: str = setting(NAME_DOC, label=True)


Subject = LanguageModel | Contrastive | PythonHook | CommandHook
Model = Decoder | DualEncoder | NoModel
Optimizer = AdamW | Adam | Sgd | Muon
Text = StandardLibrary | TextFiles | TokenFile
Pairs = Digits | ImageText
Data = StandardLibrary | TextFiles | TokenFile | Digits | ImageText | NoData

# The config groups whose presets become parts: group -> kind -> class.
KINDS: dict[str, dict[str, type]] = {
    "subject": {part.kind: part for part in (LanguageModel, Contrastive, PythonHook, CommandHook)},
    "model": {part.kind: part for part in (Decoder, DualEncoder, NoModel)},
    "optimizer": {part.kind: part for part in (AdamW, Adam, Sgd, Muon)},
    "data": {part.kind: part for part in (StandardLibrary, TextFiles, TokenFile, Digits, ImageText, NoData)},
}
