"""Unit roundoffs: half the distance from 1 to the next number that a format holds."""

import torch

BY_TENSOR = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
UNITS = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-11, "tf32_emulated": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}
UNITS |= {"amp_bf16": 2.0**-8, "amp_fp16": 2.0**-11}
