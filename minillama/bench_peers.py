"""The engines that `minillama bench --against` runs beside ours, on the same weights and with the same loop."""

from __future__ import annotations

import ctypes
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import torch

from minillama.args import ModelArgs
from minillama.transformer import Transformer

Weight = Callable[[str], torch.Tensor]  # the plain weight of one of Meta's keys
Feed = Callable[[torch.Tensor], torch.Tensor]  # the next tokens of every row, (B, T) -> their last logits, (B, V)

# A weight's name in Meta's files, in transformers and in GGUF; the first three stand once, the rest in every layer.
NAMES = (
    ("tok_embeddings", "model.embed_tokens", "token_embd"),
    ("norm", "model.norm", "output_norm"),
    ("output", "lm_head", "output"),
    ("attention_norm", "input_layernorm", "attn_norm"),
    ("ffn_norm", "post_attention_layernorm", "ffn_norm"),
    ("attention.wq", "self_attn.q_proj", "attn_q"),
    ("attention.wk", "self_attn.k_proj", "attn_k"),
    ("attention.wv", "self_attn.v_proj", "attn_v"),
    ("attention.wo", "self_attn.o_proj", "attn_output"),
    ("feed_forward.w1", "mlp.gate_proj", "ffn_gate"),
    ("feed_forward.w2", "mlp.down_proj", "ffn_down"),
    ("feed_forward.w3", "mlp.up_proj", "ffn_up"),
)


GGUF = {"int8": "Q8_0", "int4": "Q4_0"}  # llama.cpp's weights where ours are quantized
GGUF_BITS = {"int8": 8.5, "int4": 4.5}  # a weight, the scales of its block included


def names(n_layers: int) -> Iterator[tuple[str, str, str]]:
    """Every weight's name in the three conventions."""
    yield from ((f"{meta}.weight", f"{hf}.weight", f"{gguf}.weight") for meta, hf, gguf in NAMES[:3])
    for i in range(n_layers):
        for meta, hf, gguf in NAMES[3:]:
            yield f"layers.{i}.{meta}.weight", f"model.layers.{i}.{hf}.weight", f"blk.{i}.{gguf}.weight"


def shapes(args: ModelArgs) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {key: value.shape for key, value in Transformer(args).state_dict().items()}


class Engine:
    """Something that decodes."""

    name: str
    version: str
    held: str  # what the weights are in
    matrix_bytes: int  # all weights but the embedding
    row_bytes: int  # one row of the embedding
    warm_steps: int | None = 2  # how many steps of a sequence show it all that it has to prepare; None: all of them

    def weight_bytes(self, rows: int) -> int:
        """What a step reads."""
        return self.matrix_bytes + rows * self.row_bytes

    def feeder(self, rows: int, length: int, kept: bool = False) -> Feed:
        """The function that runs tokens into an empty cache for `rows` sequences of `length` tokens.

        Where an engine has one cache for all, the next call with the same arguments empties it.
        """
        raise NotImplementedError

    def steps(self, prompts: list[list[int]], new: int, kept: bool = False) -> Iterator[object]:
        """Continue prompts of one length greedily; every step is one token more in each row."""
        feed, tokens = self.feeder(len(prompts), len(prompts[0]) + new, kept), torch.tensor(prompts)

        def loop() -> Iterator[object]:
            nonlocal tokens
            for _ in range(new):
                ids = feed(tokens).argmax(-1)
                yield ids.tolist()
                tokens = ids[:, None]

        return loop()

    def logits(self, ids: list[int]) -> torch.Tensor:
        """(V,) after `ids`, the last two of which are fed one by one, as when decoding."""
        feed, tokens = self.feeder(1, len(ids)), torch.tensor([ids])
        for part in (tokens[:, :-2], tokens[:, -2:-1], tokens[:, -1:]):
            last = feed(part)
        return last[0].float().cpu()

    def close(self) -> None:
        """Give back what Python would not."""


class Transformers(Engine):
    """Hugging Face transformers: LlamaForCausalLM, scaled_dot_product_attention, a dynamic cache."""

    name = "transformers"

    def __init__(self, args: ModelArgs, weight: Weight, dtype: torch.dtype, device: torch.device, quantize: str | None):
        self.module = _package("transformers", self.name)
        self.device, self.version = device, self.module.__version__
        config = self.module.LlamaConfig(
            vocab_size=args.vocab_size, hidden_size=args.dim, intermediate_size=args.hidden_dim,
            num_hidden_layers=args.n_layers, num_attention_heads=args.n_heads, num_key_value_heads=args.n_kv_heads,
            max_position_embeddings=args.max_seq_len, rms_norm_eps=args.norm_eps, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": args.rope_theta},
            bos_token_id=None, eos_token_id=None, dtype=dtype, attn_implementation="sdpa",
        )  # fmt: skip
        with torch.device("meta"):
            self.model = self.module.LlamaForCausalLM(config).eval()
        # Its name in the first releases of version 5, and since.
        self.cache_name = "cache" if "cache" in signature(self.model.forward).parameters else "past_key_values"
        state = {}
        for meta, hf, _ in names(args.n_layers):
            value = weight(meta).detach()
            if ".wq." in meta or ".wk." in meta:  # Hugging Face rotates halves of a head, Meta neighbouring pairs
                value = value.view(-1, args.head_dim // 2, 2, args.dim).transpose(1, 2).reshape(value.shape)
            state[hf] = value.contiguous()  # ours itself, where it is laid out plainly
        self.model.load_state_dict(state, assign=True)
        self.model.model.rotary_emb = type(self.model.model.rotary_emb)(config).to(device)  # a buffer, left on meta
        self.held = str(dtype).removeprefix("torch.")
        self.row_bytes = state["model.embed_tokens.weight"][0].nbytes
        self.matrix_bytes = sum(w.nbytes for w in state.values()) - args.vocab_size * self.row_bytes

    def feeder(self, rows: int, length: int, kept: bool = False) -> Feed:
        cache = self.module.DynamicCache(config=self.model.config)

        @torch.inference_mode()
        def feed(tokens: torch.Tensor) -> torch.Tensor:
            tokens = tokens.to(self.device)
            return self.model(tokens, use_cache=True, logits_to_keep=1, **{self.cache_name: cache}).logits[:, -1]

        return feed


class LlamaCpp(Engine):
    """llama.cpp through its C interface, from a GGUF file that is written here and goes with this object."""

    name = "llamacpp"

    def __init__(self, args: ModelArgs, weight: Weight, dtype: torch.dtype, device: torch.device, quantize: str | None):
        self.gguf, self.c = _package("gguf", self.name), _package("llama_cpp", self.name)
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)  # it would report every tensor
        full = "F32" if dtype == torch.float32 else "F16"
        kind = GGUF.get(quantize or "", full)
        self.held = kind.lower()
        self.version = self.c.__version__
        self.vocab_size, self.dtype, self.device = args.vocab_size, dtype, device
        if device.type != "cpu" and not self.c.llama_supports_gpu_offload():
            raise ValueError("--against llamacpp: this llama-cpp-python was built for CPUs only; use --device cpu")
        self.folder = TemporaryDirectory(prefix="minillama-", ignore_cleanup_errors=True)
        path = Path(self.folder.name) / "model.gguf"
        self._write(path, args, weight, self.gguf.GGMLQuantizationType[kind])
        params = self.c.llama_model_default_params()
        if quantize is not None and not _survives(self.c, path):
            params.use_extra_bufts = False
            self.held += " plain"
        params.n_gpu_layers = 0 if device.type == "cpu" else args.n_layers + 1
        self.model = self.c.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError("llama.cpp does not load the GGUF file written for it")
        self.contexts: dict[tuple[int, int, bool], Any] = {}

    def _write(self, path: Path, args: ModelArgs, weight: Weight, kind: Any) -> None:
        writer = self.gguf.GGUFWriter(path, "llama")
        writer.add_block_count(args.n_layers)
        writer.add_context_length(args.max_seq_len)
        writer.add_embedding_length(args.dim)
        writer.add_feed_forward_length(args.hidden_dim)
        writer.add_head_count(args.n_heads)
        writer.add_head_count_kv(args.n_kv_heads)
        writer.add_layer_norm_rms_eps(args.norm_eps)
        writer.add_rope_dimension_count(args.head_dim)
        writer.add_rope_freq_base(args.rope_theta)
        writer.add_vocab_size(args.vocab_size)
        writer.add_tokenizer_model("no_vocab")
        per_block, block_bytes = self.gguf.GGML_QUANT_SIZES[kind]
        norm_kind, float32 = self.gguf.GGMLQuantizationType.F32, np.dtype(np.float32)
        self.matrix_bytes = 0
        all_shapes = shapes(args)
        for meta, _, name in names(args.n_layers):
            shape = all_shapes[meta]
            size = shape.numel() * 4 if len(shape) == 1 else shape.numel() // per_block * block_bytes
            if shape[-1] % per_block:
                raise ValueError(
                    f"--against llamacpp: {kind.name} takes rows of {per_block}s; {meta} is {shape[-1]} wide"
                )
            writer.add_tensor_info(name, shape, float32, size, raw_dtype=norm_kind if len(shape) == 1 else kind)
            self.matrix_bytes += size
        embedding_bytes = args.vocab_size * args.dim // per_block * block_bytes
        self.row_bytes = embedding_bytes // args.vocab_size
        free = shutil.disk_usage(path.parent).free
        if self.matrix_bytes > free:
            wanted = f"a GGUF file of {self.matrix_bytes / 1e9:.1f} GB in {path.parent.parent}"
            raise ValueError(f"--against llamacpp writes {wanted}, where {free / 1e9:.1f} GB are free; set TMPDIR")
        self.matrix_bytes -= embedding_bytes
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for meta, _, _ in names(args.n_layers):
            # No permutation: GGUF's "llama" rotates neighbouring pairs, as Meta does.
            value = weight(meta).detach().float().cpu().numpy()
            writer.write_tensor_data(value if value.ndim == 1 else self.gguf.quants.quantize(value, kind))
        writer.close()

    def feeder(self, rows: int, length: int, kept: bool = False) -> Feed:
        key = rows, length, kept
        if key not in self.contexts:
            params = self.c.llama_context_default_params()
            params.n_ctx, params.n_seq_max, params.n_batch = rows * length, rows, rows * length
            params.kv_unified = False  # each row attends to its own tokens alone, as in the other engines
            params.n_threads = params.n_threads_batch = torch.get_num_threads()
            params.offload_kqv = params.op_offload = self.device.type != "cpu"
            if self.dtype == torch.float32:
                # In fp32 throughout, as ours: its cache would be f16, and its flash attention is 1e-3 off, not 1e-6.
                params.type_k = params.type_v = self.c.GGML_TYPE_F32
                params.flash_attn_type = self.c.LLAMA_FLASH_ATTN_TYPE_DISABLED
            context = self.c.llama_init_from_model(self.model, params)
            if not context:
                raise ValueError(f"--against llamacpp: no room for {rows} sequences of {length} tokens")
            self.contexts[key] = context
        context = self.contexts[key]
        self.c.llama_memory_clear(self.c.llama_get_memory(context), True)
        ids = np.arange(rows, dtype=np.int32)
        end = 0

        def feed(tokens: torch.Tensor) -> torch.Tensor:
            nonlocal end
            T = tokens.shape[1]
            n = rows * T
            token, ones = tokens.flatten().int().cpu().numpy(), np.ones(n, np.int32)
            position = np.tile(np.arange(end, end + T, dtype=np.int32), rows)
            row = np.repeat(ids.ctypes.data + ids.itemsize * np.arange(rows, dtype=np.uint64), T).astype(np.uint64)
            wanted = np.zeros(n, np.int8)
            wanted[T - 1 :: T] = 1
            batch = self.c.llama_batch(n_tokens=n)
            for name, array in dict(token=token, pos=position, n_seq_id=ones, seq_id=row, logits=wanted).items():
                kind = dict(self.c.llama_batch._fields_)[name]
                setattr(batch, name, ctypes.cast(array.ctypes.data, kind))
            if self.c.llama_decode(context, batch):
                raise RuntimeError(f"llama.cpp failed on {n} tokens after {end}")
            end += T
            logits = [self.c.llama_get_logits_ith(context, r * T + T - 1) for r in range(rows)]
            return torch.from_numpy(np.stack([np.ctypeslib.as_array(one, (self.vocab_size,)) for one in logits]))

        return feed

    def close(self) -> None:
        for context in self.contexts.values():
            self.c.llama_free(context)
        self.c.llama_model_free(self.model)
        self.contexts, self.model = {}, None
        self.folder.cleanup()


def _survives(c: ModuleType, path: Path) -> bool:
    """Whether llama.cpp runs quantized weights in its AMX layout: on some virtual machines that ends the process."""
    if b"AMX_INT8 = 1" not in c.llama_print_system_info():
        return True
    code = "import llama_cpp, sys; llama_cpp.Llama(sys.argv[1], n_ctx=64, verbose=False).eval([1] * 32)"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True).returncode == 0


PEERS: dict[str, type[Transformers] | type[LlamaCpp]] = {peer.name: peer for peer in (Transformers, LlamaCpp)}
PACKAGES = {"transformers": ("transformers",), "llamacpp": ("gguf", "llama_cpp")}


def check_peers(against: Sequence[str]) -> None:
    """Raise ValueError for a peer that there is not, or whose packages are not installed."""
    for name in against:
        if name not in PEERS:
            raise ValueError(f"no peer {name!r} to run against; there are {', '.join(PEERS)}")
        for package in PACKAGES[name]:
            _package(package, name)


def _package(module: str, peer: str) -> ModuleType:
    try:
        return import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # a shared library may not load
        raise ValueError(f"--against {peer} needs {module} ({error}); pip install 'minillama[bench]'") from None
