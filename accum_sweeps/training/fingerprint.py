"""What a run's numbers depend on besides its specification: builds and hardware."""

import hashlib
import json
import os
import platform
import sys
from pathlib import Path

import numpy as np
import torch
from torch.backends.cuda import fp16_bf16_reduction_math_sdp_allowed, matmul

# Set in the environment, these change which kernels are used or how they round (oneDNN still reads its older names, DNNL_*).
_VARIABLES = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "DNNL_CPU_ISA_HINTS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_THREAD_LIMIT",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)


def fingerprint(device: str) -> tuple[str, dict[str, str]]:
    """(env_id, facts): twelve hex digits over the facts, and the facts by name.

    Facts: torch's version, source revision and CUDA build, the CPU kernels it picked, the CPU's model, on ``cuda`` the
    GPU's model, cuDNN and whether float16 may be added up in float16 or half-precision attention in half precision, numpy, Python's
    minor version, and those environment variables that choose kernels. Flags that the specification sets, such as TF32, are not among them.
    """
    facts = {
        "torch": torch.__version__,
        "torch_git": str(torch.version.git_version),
        "torch_cuda": str(torch.version.cuda),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": cpu_model(),
        "numpy": np.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "device": device,
    }
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cudnn": str(torch.backends.cudnn.version())}  # type: ignore[no-untyped-call]
        facts |= {"fp16_accumulation": str(matmul.allow_fp16_accumulation), "sdp_reduction": str(fp16_bf16_reduction_math_sdp_allowed())}  # type: ignore[no-untyped-call]
    facts |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return digest[:12], facts


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, family and model number; where the system does not tell, its architecture."""
    try:
        pairs = [line.partition(":")[::2] for line in cpuinfo.read_text().splitlines()]
    except OSError:
        pairs = []
    first: dict[str, str] = {}
    for name, value in pairs:
        first.setdefault(name.strip(), value.strip())
    # Names can be vague ("AMD EPYC" in a virtual machine): the numbers tell generations apart.
    told = [first[name] for name in ("model name", "cpu family", "model") if name in first]
    return " ".join(told) or platform.processor() or platform.machine()
